"""Build prompts for the C interface, component by component."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from openafm.framework.backends.language_model import Capability, LanguageModel
from openafm.framework.transcripts.images import ImageAttachment
from openafm.framework.transcripts.prompt import PromptLike


class PromptBuilder:
    """Collect the texts and images of a prompt, in order."""

    def __init__(self) -> None:
        self.components: list[str | ImageAttachment] = []

    def add_text(self, text: str) -> None:
        self.components.append(text)

    def add_image(self, path: str, label: str | None) -> None:
        """Add an image.

        Raises:
            ImagePromptError: the file does not exist.
        """
        self.components.append(ImageAttachment(Path(path), label))

    def prompt_for(self, model: LanguageModel) -> PromptLike:
        """Return the prompt. For models without vision, text replaces the images: the SDK has no error for them."""
        if Capability.VISION in model.capabilities:
            return list(self.components)
        return "\n".join(part if isinstance(part, str) else _image_description(part) for part in self.components)


def _image_description(image: ImageAttachment) -> str:
    kind = mimetypes.guess_type(image.path)[0] or "image"
    return f"[{kind} {image.label or image.path.name}, which you cannot see]"
