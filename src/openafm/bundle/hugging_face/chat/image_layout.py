"""Derive the tokens around an image from a Jinja chat template and a processor that expands the image token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from openafm.bundle.hugging_face.chat.layout import USER, Layout, TemplateReader, before, rest, user_parts
from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.tokenizer.conversation import AssistantTurn, ImagePart, TextPart, Turn, UserTurn
from openafm.tokenizer.imported.template import ImportedTemplate

_IMAGE_MARK = "Zqimageqz"
_NAMES = {"start_image_token": "<img>", "context_image_token": "<IMG_CONTEXT>", "end_image_token": "</img>"}


@dataclass(frozen=True, kw_only=True)
class ImageTokens:
    """The tokens of images: the chat template writes `token`, the processor repeats it between `start` and `end`."""

    start: str
    token: str
    end: str

    def as_in_template(self, text: str) -> str:
        """Return a text with images of one token as the chat template writes it."""
        return text.replace(f"{self.start}{self.token}{self.end}", self.token)


def image_tokens(settings: Mapping[str, Any], special_ids: Mapping[str, int], image_token_id: object) -> ImageTokens:
    """Return the image tokens that `tokenizer_config.json` names, by default InternVL's.

    Raises:
        HuggingFaceError: the tokenizer lacks one of them, or `config.json` has another id of the image token.
    """
    extra = settings.get("extra_special_tokens")
    named = {**settings, **extra} if isinstance(extra, Mapping) else settings
    start, token, end = (str(named.get(key, default)) for key, default in _NAMES.items())
    for name in (start, token, end):
        if name not in special_ids:
            raise HuggingFaceError(f"tokenizer.json has no token {name!r}, which images need; restore the folder")
    if image_token_id not in (None, special_ids[token]):
        raise HuggingFaceError(
            f"config.json has image_token_id {image_token_id!r}, tokenizer.json {special_ids[token]} for {token!r}"
        )
    return ImageTokens(start=start, token=token, end=end)


def with_images(reader: TemplateReader, layout: Layout, template: ImportedTemplate, images: ImageTokens) -> ImportedTemplate:
    """Return the template with a place for images in prompts.

    Raises:
        UnsupportedTemplateError: the Jinja template does not write images one by one.
    """
    turn = UserTurn(content=(ImagePart(digest="0", num_tokens=1), TextPart(text=USER)))
    head = before(reader.jinja.text([user_parts(turn)]), USER)
    written = rest(head, layout.start + layout.user_head, "an image")
    if written.count(images.token) != 1:
        raise HuggingFaceError(f"the chat template writes {written!r} for an image; expected {images.token!r} once")
    row = reader.row(written.replace(images.token, f"{images.start}{_IMAGE_MARK}{images.end}"), {_IMAGE_MARK: "{image}"})
    tokens = dict.fromkeys((*template.tokens, *reader.tokens_of([row]), images.token))
    return replace(template, tokens=tuple(tokens), image=row, image_token=images.token)


def _turn(*parts: str | None) -> UserTurn:
    """A prompt of texts and, for None, images."""
    return UserTurn(
        content=tuple(ImagePart(digest="0", num_tokens=1) if part is None else TextPart(text=part) for part in parts)
    )


IMAGE_TALK: tuple[Turn, ...] = (
    _turn(None, "What is this?"),
    AssistantTurn(text="A flyer."),
    _turn("Compare ", None, "  with\n\n", None, "\n please  "),
    AssistantTurn(text="They are equal."),
    UserTurn(text="Thank you"),
)
