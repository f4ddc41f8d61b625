"""The text format of coordinates in captions, questions and answers, shared with the models (report 3.2.4, 5.1).

Coordinates are whole thousandths of the image's width and height, from 0 to 1000, so that they do not depend on the
resolution: a box is `[left,top,right,bottom]`, a point `[x,y]`. In a grounded caption the box follows its noun:
`a red circle [120,40,310,260] left of a blue square [500,60,700,258]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from openafm.data.images.documents import Box

SCALE = 1000
_COORDINATES = re.compile(r"\[(\d{1,4}(?:,\d{1,4}){1,3})\]")


def box_text(box: Box, width: int, height: int) -> str:
    """Return a box in pixels as text."""
    left, top, right, bottom = box
    return _text((left / width, top / height, right / width, bottom / height))


def point_text(x: float, y: float, width: int, height: int) -> str:
    """Return a point in pixels as text."""
    return _text((x / width, y / height))


def boxes_of(text: str, width: int, height: int) -> Iterator[tuple[int, Box]]:
    """Yield the boxes in a text in pixels, each with the position in the text at which it begins."""
    for match in _COORDINATES.finditer(text):
        values = [int(value) / SCALE for value in match[1].split(",")]
        if len(values) == 4 and max(values) <= 1:
            left, top, right, bottom = values
            yield match.start(), (left * width, top * height, right * width, bottom * height)


def without_boxes(text: str) -> str:
    """Return a grounded text without its coordinates."""
    return re.sub(r" ?" + _COORDINATES.pattern, "", text)


def _text(shares: tuple[float, ...]) -> str:
    return "[" + ",".join(str(min(max(round(share * SCALE), 0), SCALE)) for share in shares) + "]"
