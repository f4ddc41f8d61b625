"""Resolution modes of a local model's images: what a request chooses by `GenerationOptions.image_detail`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from openafm.bundle import Bundle
from openafm.framework.errors import ExceededContextWindowSizeError
from openafm.framework.options import ImageDetail
from openafm.framework.transcripts.prompt import ImagePromptError, UnsupportedAttachmentError
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.reading.page import DEFAULT_DETAIL, open_reader
from openafm.runtime.engines.image_cache import UnreadableImageError
from openafm.tokenizer.conversation import ContentPart, ContentTurn, ImagePart, TextPart, ToolTurn, Turn, UserTurn

NO_TEXT = "(an image without text)"


def image_modes(bundle: Bundle) -> tuple[ImageModeConfig, ...]:
    """Return the resolution modes that a model is trained for, the default one first; none for a text model."""
    config = bundle.config
    return config.image_modes if isinstance(config, MultimodalConfig) and bundle.template.can_take_images else ()


def only_reads(bundle: Bundle) -> bool:
    """Return whether a model gets the text of images from its reader of pages, and sees nothing else of them."""
    return bundle.reader is not None and not image_modes(bundle)


def chosen_mode(bundle: Bundle, detail: ImageDetail | None) -> ImageModeConfig:
    """Return the mode that a request chooses, by default the model's first one.

    Raises:
        UnsupportedAttachmentError: the model sees no images, or is not trained for this mode.
    """
    modes = image_modes(bundle)
    if not modes:
        raise UnsupportedAttachmentError(
            f"the model {bundle.name} does not support images; leave them out, or use a model with a vision encoder"
        )
    for mode in modes:
        if detail in (None, mode.name):
            return mode
    known = ", ".join(mode.name for mode in modes)
    raise UnsupportedAttachmentError(
        f"the model {bundle.name} is not trained for image_detail '{detail}'; choose one of {known}"
    )


def image_part(bundle: Bundle, image: bytes, detail: ImageDetail | None = None) -> ContentPart:
    """Return the part of a prompt for an image: the image, or for a text model with a reader of pages its text.

    Raises:
        UnsupportedAttachmentError: the model does not support images, or not this detail.
        ImagePromptError: the reader cannot take the image.
        PageReaderError: the reader is damaged.
    """
    if bundle.reader is None or not only_reads(bundle):
        num_tokens = num_tokens_of(image, chosen_mode(bundle, detail))
        return ImagePart(digest=hashlib.sha256(image).hexdigest(), num_tokens=num_tokens)
    try:
        page = open_reader(bundle.reader).read(image, detail or DEFAULT_DETAIL)
    except UnreadableImageError as error:
        raise ImagePromptError(str(error)) from error
    return TextPart(text=page.markdown or NO_TEXT)


def fewest_image_tokens(bundle: Bundle, detail: ImageDetail | None) -> int:
    """Return the number of tokens that an image takes at least, without decoding it.

    Raises:
        UnsupportedAttachmentError: the model does not support images, or not this detail.
    """
    return 1 if only_reads(bundle) else min(chosen_mode(bundle, detail).token_counts)


def num_tokens_of(image: bytes, mode: ImageModeConfig) -> int:
    """Return the number of tokens of an image in a mode; of one that cannot be read, the most of the mode."""
    from openafm.data.images.decoding import upright_size

    size = upright_size(image) if len(mode.token_counts) > 1 else None
    return mode.num_tokens if size is None else mode.num_tokens_of(*size)


def in_known_modes(turns: Iterable[Turn], modes: Sequence[ImageModeConfig]) -> tuple[Turn, ...]:
    """Return turns whose images have numbers of tokens that the model knows: other ones get the default mode's.

    The transcript of another model counts images in its own way.
    """
    counts = frozenset[int]().union(*(mode.token_counts for mode in modes))

    def known(part: ContentPart) -> ContentPart:
        if isinstance(part, ImagePart) and modes and part.num_tokens not in counts:
            return replace(part, num_tokens=min(modes[0].token_counts))
        return part

    def converted(turn: Turn) -> Turn:
        match turn:
            case UserTurn():
                return UserTurn(content=tuple(map(known, turn.content)), response_format=turn.response_format)
            case ToolTurn():
                return ToolTurn(name=turn.name, content=tuple(map(known, turn.content)))
        return turn

    return tuple(map(converted, turns))


def check_fits(token_count: int, context_size: int, turns: Iterable[Turn], modes: Sequence[ImageModeConfig]) -> None:
    """Check that a conversation that ends with `turns` fits the context window.

    Raises:
        ExceededContextWindowSizeError: it does not; the message has the tokens of the images in `turns`.
    """
    if token_count <= context_size:
        return
    counts = [image.num_tokens for turn in turns if isinstance(turn, ContentTurn) for image in turn.images]
    if not counts:
        raise ExceededContextWindowSizeError(token_count, context_size)
    details = ", ".join(f"{mode.name} {_counts(mode)}" for mode in modes)
    raise ExceededContextWindowSizeError(
        token_count,
        context_size,
        f"the conversation needs {token_count} tokens, {sum(counts)} of them for {len(counts)} new images, but the"
        f" context window of this model has {context_size}; attach fewer images, or choose another image_detail (tokens of"
        f" an image: {details})",
    )


def _counts(mode: ImageModeConfig) -> str:
    least = min(mode.token_counts)
    return str(least) if least == mode.num_tokens else f"{least} to {mode.num_tokens}"
