"""Grounded captions from a caption and a grounding model, which locates its nouns in the image (report 3.2.4).

A grounder is a config class below `GrounderConfig`, also in a plugin. `LabelGrounderConfig` needs no model.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openafm.core.config import Config
from openafm.data.images.documents import Box, ImageDocument, StoredImage
from openafm.data.images.grounding import box_text


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """The characters start..stop-1 of a caption, and the box of what they name, in pixels."""

    start: int
    stop: int
    box: Box


class Grounder(ABC):
    """Locates the nouns of captions in images. Several threads call it at once."""

    @abstractmethod
    def phrases(self, document: ImageDocument, image: StoredImage, caption: str) -> Sequence[Phrase]:
        """Return the phrases that were found in the image."""


@dataclass(frozen=True, kw_only=True)
class GrounderConfig(Config, ABC):
    """Base of the grounders."""

    @abstractmethod
    def build(self) -> Grounder:
        """Return the grounder."""


@dataclass(frozen=True, kw_only=True)
class LabelGrounderConfig(GrounderConfig):
    """Finds the labels of the document's regions in the caption: the first place of each, longer labels first.

    A label that several regions share is left out: the caption does not identify one of them.
    """

    def build(self) -> Grounder:
        return _LabelGrounder()


class _LabelGrounder(Grounder):
    def phrases(self, document: ImageDocument, image: StoredImage, caption: str) -> Sequence[Phrase]:
        boxes = {region.label.casefold(): region.box for region in document.regions if region.image in ("", image.digest)}
        counts = Counter(region.label.casefold() for region in document.regions)
        found: list[Phrase] = []
        for label in sorted(boxes, key=lambda label: (-len(label), label)):
            pattern = rf"(?<!\w){re.escape(label)}(?!\w)"
            for match in re.finditer(pattern, caption, re.IGNORECASE) if label and counts[label] == 1 else ():
                if all(match.end() <= each.start or match.start() >= each.stop for each in found):
                    found.append(Phrase(start=match.start(), stop=match.end(), box=boxes[label]))
                    break
        return found


def grounded_text(caption: str, phrases: Sequence[Phrase], image: StoredImage) -> str:
    """Return the caption with the box of each phrase after it.

    Boxes are clipped to the image. Phrases outside of the text, that overlap an earlier one, or whose box is empty are left
    out.
    """
    pieces, end = [], 0
    for phrase in sorted(phrases, key=lambda each: (each.start, each.stop)):
        left, top = max(phrase.box[0], 0), max(phrase.box[1], 0)
        right, bottom = min(phrase.box[2], image.width), min(phrase.box[3], image.height)
        if end <= phrase.start < phrase.stop <= len(caption) and left < right and top < bottom:
            box = box_text((left, top, right, bottom), image.width, image.height)
            pieces.append(f"{caption[end : phrase.stop]} {box}")
            end = phrase.stop
    return "".join([*pieces, caption[end:]])
