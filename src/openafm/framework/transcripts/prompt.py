"""Prompts: text, attachments and values, or a list of them in reading order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from openafm.core.errors import UsageError
from openafm.framework.errors import FoundationModelsError, UnsupportedCapabilityError
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.generable import Generable
from openafm.tokenizer.conversation import ContentPart, TextPart


class PromptError(FoundationModelsError):
    """A prompt contains a component of an unsupported type."""


class ImagePromptError(PromptError):
    """An image cannot be attached to a prompt. On the command line a wrong call, as a wrong option is."""

    exit_code = UsageError.exit_code


class UnsupportedAttachmentError(ImagePromptError, UnsupportedCapabilityError):
    """The model does not support images. A subclass of both errors, as Apple's SDK and its framework differ."""


class Attachment(ABC):
    """Base of attachments to a prompt."""

    label: str | None

    @abstractmethod
    def read(self) -> bytes:
        """Return the bytes of the attached file.

        Raises:
            PromptError: the file cannot be read.
        """


PromptComponent: TypeAlias = str | Attachment | GeneratedContent | Generable
"""A part of a prompt. Values (generated content, instances of generable classes) are written as compact JSON."""


@dataclass(frozen=True, init=False)
class Prompt:
    """Text, attachments and values in reading order: `Prompt("What does the sign say?", Image("sign.png"))`."""

    components: tuple[PromptComponent, ...]

    def __init__(self, *components: PromptComponent) -> None:
        object.__setattr__(self, "components", components)


PromptLike: TypeAlias = Prompt | PromptComponent | Sequence[PromptComponent]
"""What sessions take as a prompt: a `Prompt`, one component, or a list of components."""


def prompt_text(prompt: PromptLike) -> str:
    """Return the text of a prompt without its attachments, one component per line.

    Raises:
        PromptError: a component is not text, an attachment or a value.
    """
    texts = [_text(component) for component in _components(prompt) if not isinstance(component, Attachment)]
    return "\n".join(texts)


def prompt_attachments(prompt: PromptLike) -> tuple[Attachment, ...]:
    """Return the attachments of a prompt, in order."""
    return tuple(component for component in _components(prompt) if isinstance(component, Attachment))


def prompt_content(
    prompt: PromptLike, image_part: Callable[[bytes], ContentPart]
) -> tuple[tuple[ContentPart, ...], dict[str, bytes]]:
    """Return the content parts of a prompt, and the bytes of its images by digest.

    Components that follow each other are separate lines. The label of an image is a line of text before it.

    Args:
        image_part: returns the part for an image: one with its digest and tokens, or the text that is read in it.

    Raises:
        PromptError: a component has an unsupported type, or an image cannot be read.
    """
    parts: list[ContentPart] = []
    images: dict[str, bytes] = {}
    for component in _components(prompt):
        if isinstance(component, Attachment):
            data = component.read()
            _add_line(parts, f"{component.label}:" if component.label else None)
            part = image_part(data)
            if isinstance(part, TextPart):
                _add_line(parts, part.text)
            else:
                images[part.digest] = data
                parts.append(part)
        else:
            _add_line(parts, _text(component))
    return tuple(parts), images


def has_attachments(value: object) -> bool:
    """Return True for a prompt with attachments, an attachment, or a list with one: the output of a tool, for example."""
    components = value.components if isinstance(value, Prompt) else value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(component, Attachment) for component in components)


def _add_line(parts: list[ContentPart], line: str | None) -> None:
    if line is None:
        return
    if parts and isinstance(last := parts[-1], TextPart):
        parts[-1] = TextPart(text=f"{last.text}\n{line}")
    else:
        parts.append(TextPart(text=line))


def _components(prompt: PromptLike) -> Iterable[PromptComponent]:
    if isinstance(prompt, Prompt):
        return prompt.components
    if isinstance(prompt, bytes | bytearray):
        raise PromptError("a prompt is text, got bytes; decode them, such as with prompt.decode('utf-8')")
    is_one = isinstance(prompt, str | Mapping | Attachment | GeneratedContent | Generable)
    components = (prompt,) if is_one or not isinstance(prompt, Iterable) else prompt
    return cast(Iterable[PromptComponent], components)


def _text(component: PromptComponent) -> str:
    if isinstance(component, str):
        return component
    content = component if isinstance(component, GeneratedContent) else getattr(component, "generated_content", None)
    if isinstance(content, GeneratedContent):
        return content.to_json()
    raise PromptError(
        f"a prompt consists of text, attachments and generable values; got {type(component).__name__}: {component!r:.80}"
    )
