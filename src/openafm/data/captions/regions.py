"""Regions of images and where they are: detectors, crops, spatial facts, grounded texts.

A detector is a config class below `DetectorConfig`, also in a plugin. `KnownRegionsConfig` takes the regions that the corpus
has, such as the truth of drawn images.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config
from openafm.data.images.decoding import pixels, png
from openafm.data.images.documents import Box, ImageDocument, Region, StoredImage
from openafm.data.images.grounding import box_text, boxes_of, without_boxes

_MARGIN = 0.05
_INSIDE = 0.9  # of the area of the smaller box
_OVERLAP = 0.3
_MAX_RELATIONS = 2  # for each region


class Detector(ABC):
    """Finds regions in images. Several threads call it at once."""

    @abstractmethod
    def regions(self, document: ImageDocument, image: StoredImage) -> Sequence[Region]:
        """Return regions of the image with boxes in its pixels."""


@dataclass(frozen=True, kw_only=True)
class DetectorConfig(Config, ABC):
    """Base of the detectors."""

    @abstractmethod
    def build(self) -> Detector:
        """Return the detector."""


@dataclass(frozen=True, kw_only=True)
class KnownRegionsConfig(DetectorConfig):
    """The regions of the document, such as those that a generator drew. `kinds` selects some; empty: all."""

    kinds: tuple[str, ...] = ("object",)

    def build(self) -> Detector:
        return _KnownRegions(self)


class _KnownRegions(Detector):
    def __init__(self, config: KnownRegionsConfig) -> None:
        self._config = config

    def regions(self, document: ImageDocument, image: StoredImage) -> Sequence[Region]:
        kinds = self._config.kinds
        return [
            region
            for region in document.regions
            if region.image in ("", image.digest) and (not kinds or region.kind in kinds)
        ]


@dataclass(frozen=True, kw_only=True)
class CaptionedRegion:
    """A region and what a captioner says about its crop alone."""

    box: Box
    caption: str


def chosen_regions(regions: Sequence[Region], image: StoredImage, *, min_share: float, max_regions: int) -> list[Box]:
    """Return the boxes of the largest regions inside the image, in reading order, each once.

    Boxes are clipped to the image. Those with less than `min_share` of its area are left out.
    """
    boxes = {_clipped(region.box, image.width, image.height) for region in regions}
    area = image.width * image.height
    large = [box for box in boxes if _area(box) >= max(min_share * area, 1)]
    largest = sorted(large, key=lambda box: (-_area(box), box))[:max_regions]
    return sorted(largest, key=lambda box: (round(8 * box[1] / image.height), box[0], box[1], box[2], box[3]))


def crops(image: StoredImage, boxes: Sequence[Box]) -> list[bytes]:
    """Return the boxes of an image, each with a margin of a twentieth of its size, as PNG files."""
    pixels_HWC: npt.NDArray[np.uint8] = pixels(image)
    found = []
    for left, top, right, bottom in boxes:
        x, y = _MARGIN * (right - left), _MARGIN * (bottom - top)
        rows = slice(max(int(top - y), 0), max(int(bottom + y + 1), 1))
        columns = slice(max(int(left - x), 0), max(int(right + x + 1), 1))
        found.append(png(pixels_HWC[rows, columns]))
    return found


def spatial_facts(regions: Sequence[CaptionedRegion], width: int, height: int) -> list[str]:
    """Return a line for each region: number, caption with its box, place, size, and relations to the nearest others."""
    relations: dict[int, list[tuple[float, str]]] = {index: [] for index in range(len(regions))}
    for one, other in combinations(range(len(regions)), 2):
        a, b = regions[one].box, regions[other].box
        distance = _distance(a, b)
        relations[one].append((distance, f"{_relation(a, b)} {other + 1}"))
        relations[other].append((distance, f"{_relation(b, a)} {one + 1}"))
    lines = []
    for index, region in enumerate(regions):
        nearest = [text for _, text in sorted(relations[index])[:_MAX_RELATIONS]]
        share = _area(region.box) / (width * height)
        facts = [_place(region.box, width, height), f"{max(round(100 * share), 1)}% of the image", *nearest]
        lines.append(f"{index + 1}. {region.caption} {box_text(region.box, width, height)} ({'; '.join(facts)})")
    return lines


def grounding_problem(text: str, regions: Sequence[CaptionedRegion], width: int, height: int) -> str:
    """Return what is wrong with the coordinates of a grounded text: boxes that were not given, none, or box fragments."""
    given = {box_text(region.box, width, height) for region in regions}
    used = [box_text(box, width, height) for _, box in boxes_of(text, width, height)]
    if not used:
        return "no coordinates"
    if others := [box for box in used if box not in given]:
        return f"the box {others[0]} was not given"
    rest = without_boxes(text)
    if any(bracket in rest for bracket in "[]"):
        return "brackets that are not boxes"
    return ""


def _relation(box: Box, other: Box) -> str:
    """Return where a box is, seen from another: inside, around, overlapping, left of, right of, above, below."""
    common = _area((max(box[0], other[0]), max(box[1], other[1]), min(box[2], other[2]), min(box[3], other[3])))
    if common >= _INSIDE * min(_area(box), _area(other)):
        return "inside" if _area(box) <= _area(other) else "around"
    if common >= _OVERLAP * min(_area(box), _area(other)):
        return "overlapping"
    x, y = ((box[0] + box[2]) - (other[0] + other[2])) / 2, ((box[1] + box[3]) - (other[1] + other[3])) / 2
    if abs(x) >= abs(y):
        return "left of" if x < 0 else "right of"
    return "above" if y < 0 else "below"


def _place(box: Box, width: int, height: int) -> str:
    column = min(int(3 * (box[0] + box[2]) / 2 / width), 2)
    row = min(int(3 * (box[1] + box[3]) / 2 / height), 2)
    if row == 1 and column == 1:
        return "center"
    names = (("top", "", "bottom")[row], ("left", "", "right")[column])
    return " ".join(name for name in names if name)


def _distance(box: Box, other: Box) -> float:
    """Return the distance between the edges of two boxes; 0 if they touch."""
    x = max(box[0] - other[2], other[0] - box[2], 0.0)
    y = max(box[1] - other[3], other[1] - box[3], 0.0)
    return math.hypot(x, y)


def _clipped(box: Box, width: int, height: int) -> Box:
    left, top, right, bottom = box
    return max(left, 0), max(top, 0), min(right, width), min(bottom, height)


def _area(box: Box) -> float:
    return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)
