"""Prompts: text, attachments and values, or a list of them in the order that the model reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from openafm.framework.errors import FoundationModelsError, UnsupportedCapabilityError
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.generable import Generable


class PromptError(FoundationModelsError):
    """Something in a prompt that cannot be told to a model."""


class ImagePromptError(PromptError):
    """An image that cannot be attached to a prompt."""


class UnsupportedAttachmentError(ImagePromptError, UnsupportedCapabilityError):
    """The model sees no images; caught as either of the two."""


class Attachment(ABC):
    """What a prompt may hold beside text."""

    label: str | None

    @abstractmethod
    def read(self) -> bytes:
        """The attached file.

        Raises:
            PromptError: it cannot be read any more.
        """


class ImageAttachment(Attachment):
    """An image file, and the name by which prompts and tools speak of it.

    Raises:
        ImagePromptError: there is no such file.
    """

    def __init__(self, path: str | Path, label: str | None = None) -> None:
        self.path, self.label = Path(path), label
        if not self.path.is_file():
            raise ImagePromptError(f"no image to attach at {self.path}: the file does not exist")

    def read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise ImagePromptError(f"the image {self.path} cannot be read: {error}") from error

    def __repr__(self) -> str:
        return f"ImageAttachment({str(self.path)!r}, label={self.label!r})"


# Values, that is generated content and instances of generable classes, are told as compact JSON.
PromptComponent: TypeAlias = str | Attachment | GeneratedContent | Generable
Prompt: TypeAlias = PromptComponent | Sequence[PromptComponent]


def prompt_text(prompt: Prompt) -> str:
    """The text of a prompt, one component to a line; attachments have none.

    Raises:
        PromptError: a component that is neither text nor attachment nor value.
    """
    texts = [_text(component) for component in _components(prompt) if not isinstance(component, Attachment)]
    return "\n".join(texts)


def prompt_attachments(prompt: Prompt) -> tuple[Attachment, ...]:
    """The attachments of a prompt, in order. A session asks for `Capability.VISION` where there are some."""
    return tuple(component for component in _components(prompt) if isinstance(component, Attachment))


def _components(prompt: Prompt) -> Iterable[PromptComponent]:
    is_one = isinstance(prompt, str | Mapping | Attachment | GeneratedContent | Generable)
    row = (prompt,) if is_one or not isinstance(prompt, Iterable) else prompt
    return cast(Iterable[PromptComponent], row)


def _text(component: PromptComponent) -> str:
    if isinstance(component, str):
        return component
    content = component if isinstance(component, GeneratedContent) else getattr(component, "generated_content", None)
    if isinstance(content, GeneratedContent):
        return content.to_json()
    raise PromptError(
        f"a prompt is made of text, attachments and generable values, not of {type(component).__name__}: {component!r:.80}"
    )
