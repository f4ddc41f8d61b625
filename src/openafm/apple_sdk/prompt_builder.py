"""Prompts as the C interface builds them, component by component."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from openafm.framework.backends.language_model import Capability, LanguageModel
from openafm.framework.transcripts.prompt import ImageAttachment, Prompt


class PromptBuilder:
    """Texts and images, in order."""

    def __init__(self) -> None:
        self.components: list[str | ImageAttachment] = []

    def add_text(self, text: str) -> None:
        self.components.append(text)

    def add_image(self, path: str, label: str | None) -> None:
        """Add an image.

        Raises:
            ImagePromptError: there is no such file.
        """
        self.components.append(ImageAttachment(Path(path), label))

    def prompt_for(self, model: LanguageModel) -> Prompt:
        """The prompt. A model that cannot see is told in words that there is an image: the SDK has no way to refuse it."""
        if Capability.VISION in model.capabilities:
            return list(self.components)
        return "\n".join(part if isinstance(part, str) else _in_words(part) for part in self.components)


def _in_words(image: ImageAttachment) -> str:
    kind = mimetypes.guess_type(image.path)[0] or "image"
    return f"[{kind} {image.label or image.path.name}, which you cannot see]"
