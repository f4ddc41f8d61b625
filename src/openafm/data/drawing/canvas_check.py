"""Check drawings of `Canvas`: draw all but the text again from the log; what differs from the image is the ink of text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from openafm.data.drawing.base import Drawn
from openafm.data.images.documents import Region

if TYPE_CHECKING:
    from numpy.typing import NDArray


NOT_TEXT = ("bar", "checkbox", "mark", "object")
"""Kinds of regions that are not words."""


def check_canvas(drawn: Drawn) -> list[str]:
    """Return the errors of a drawing of one canvas whose commands are `log["commands"]` and whose regions are its words."""
    from PIL import Image

    image = drawn.images[0]
    commands: Any = drawn.log["commands"]
    texts = [region for region in image.regions if region.kind not in NOT_TEXT]
    pixels = np.asarray(Image.open(io.BytesIO(image.data)).convert("RGB"))
    if pixels.shape != (image.height, image.width, 3):
        return [f"the image has shape {pixels.shape}, not {(image.height, image.width, 3)}"]
    return [
        *check_ink(np.any(pixels != without_text(commands), axis=2), texts),
        *_check_labels(commands, texts),
    ]


def check_ink(ink: NDArray[np.bool_], regions: Sequence[Region]) -> list[str]:
    """Return errors unless each region's box has ink at all four sides, and all ink is in boxes."""
    errors, rest = [], ink.copy()
    for region in regions:
        left, top, right, bottom = map(round, region.box)
        part = ink[top:bottom, left:right]
        if not part.size or not (part[0].any() and part[-1].any() and part[:, 0].any() and part[:, -1].any()):
            errors.append(f"the box of {region.label!r} is not the box of its ink")
        rest[top:bottom, left:right] = False
    if rest.any():
        y, x = np.argwhere(rest)[0]
        errors.append(f"ink outside of all boxes, first at ({x}, {y})")
    return errors


def without_text(commands: Sequence[Mapping[str, Any]]) -> NDArray[np.uint8]:
    """Return the pixels that all commands but those of text draw."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", tuple(commands[0]["size"]), tuple(commands[0]["fill"]))
    draw = ImageDraw.Draw(image)
    for command in commands[1:]:
        fill = tuple(command["fill"]) if command.get("fill") else None
        outline = tuple(command["outline"]) if command.get("outline") else None
        points = [tuple(point) for point in command.get("points", ())]
        match command["op"]:
            case "line":
                draw.line(points, fill, command["width"], "curve")
            case "polygon":
                draw.polygon(points, fill, outline)
            case "rectangle" | "ellipse":
                left, top, right, bottom = command["box"]
                inside = (left, top, right - 1, bottom - 1)
                if command["op"] == "ellipse":
                    draw.ellipse(inside, fill, outline, command["width"])
                else:
                    draw.rounded_rectangle(inside, command["radius"], fill, outline, command["width"])
    return np.asarray(image)


def _check_labels(commands: Sequence[Mapping[str, Any]], regions: Sequence[Region]) -> list[str]:
    """The labels of the regions are the words of the text commands, in order."""
    words = [word for command in commands if command["op"] == "text" for word in str(command["text"]).split()]
    labels = [region.label for region in regions]
    return [] if words == labels else ["the labels of the regions are not the words of the drawing commands"]
