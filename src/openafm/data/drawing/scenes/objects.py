"""Objects of scenes: shapes in colors, and emoji of everyday things. Some kinds are held out."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.data.drawing.base import Split
from openafm.data.drawing.canvas import Color
from openafm.data.drawing.fonts import FontMissingError, emoji_font

if TYPE_CHECKING:
    from PIL.Image import Image

EMOJI = {
    "apple": "🍎", "banana": "🍌", "grapes": "🍇", "lemon": "🍋", "carrot": "🥕", "pizza": "🍕",
    "car": "🚗", "bicycle": "🚲", "bus": "🚌", "airplane": "✈", "dog": "🐕", "cat": "🐈",
    "fish": "🐟", "turtle": "🐢", "butterfly": "🦋", "elephant": "🐘", "tree": "🌳", "sunflower": "🌻",
    "guitar": "🎸", "key": "🔑", "umbrella": "☂", "house": "🏠", "book": "📕", "clock": "⏰",
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "hexagon", "heart")
COLORS: dict[str, Color] = {
    "red": (214, 40, 40),
    "blue": (38, 84, 200),
    "green": (40, 150, 70),
    "yellow": (244, 200, 20),
    "orange": (240, 130, 20),
    "purple": (130, 50, 170),
    "brown": (120, 75, 40),
    "black": (20, 20, 20),
}
_HELD_OUT = frozenset({"grapes", "bus", "turtle", "sunflower", "guitar", "umbrella", "hexagon", "heart"})
_EMOJI_SIZE = 109  # the only size of the bitmaps of Noto Color Emoji
_OVERSAMPLING = 3


@dataclass(frozen=True, order=True)
class SceneObject:
    """A kind of object: an emoji, or a shape with a color."""

    name: str
    color: str | None = None


def kinds_of(split: Split) -> tuple[SceneObject, ...]:
    """Return the kinds of a split; without the emoji font, only shapes."""
    shapes = [SceneObject(shape, color) for shape in SHAPES for color in COLORS]
    try:
        emoji_font()
        things = [SceneObject(name) for name in EMOJI]
    except FontMissingError:
        things = []
    return tuple(kind for kind in (*things, *shapes) if (kind.name in _HELD_OUT) == (split == "held_out"))


def draw_object(kind: SceneObject, size: int) -> Image:
    """Return an object as an RGBA image without empty rows and columns; its longer side has `size` pixels."""
    from PIL import Image as Images

    picture = _picture(kind)
    scale = size / max(picture.size)
    resized = picture.resize(
        (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)),
        Images.Resampling.BILINEAR,
        reducing_gap=2.0,
    )
    alpha = resized.getchannel("A").point([0] * 40 + list(range(40, 256)))
    resized.putalpha(alpha)
    return resized.crop(alpha.getbbox())


@functools.lru_cache(maxsize=128)
def _picture(kind: SceneObject) -> Image:
    from PIL import Image as Images
    from PIL import ImageDraw

    if kind.color is None:
        picture = Images.new("RGBA", (180, 180))
        ImageDraw.Draw(picture).text((20, 20), EMOJI[kind.name], font=emoji_font().at(_EMOJI_SIZE), embedded_color=True)
    else:
        side = 100 * _OVERSAMPLING
        picture = Images.new("RGBA", (side, side))
        draw = ImageDraw.Draw(picture)
        fill = (*COLORS[kind.color], 255)
        if kind.name == "circle":
            draw.ellipse((0, 0, side - 1, side - 1), fill=fill)
        else:
            draw.polygon([(x * (side - 1), y * (side - 1)) for x, y in _outline(kind.name)], fill=fill)
    return picture.crop(picture.getchannel("A").getbbox())


def _outline(shape: str) -> list[tuple[float, float]]:
    """The corners of a shape in the unit square."""
    match shape:
        case "square":
            return [(0, 0), (1, 0), (1, 1), (0, 1)]
        case "triangle":
            return [(0.5, 0), (1, 0.9), (0, 0.9)]
        case "hexagon":
            return [(0.5 + 0.5 * math.cos(math.pi * k / 3), 0.5 + 0.5 * math.sin(math.pi * k / 3)) for k in range(6)]
        case "star":
            radii = (0.5, 0.2)
            turns = [math.pi * k / 5 - math.pi / 2 for k in range(10)]
            return [(0.5 + radii[k % 2] * math.cos(t), 0.5 + radii[k % 2] * math.sin(t)) for k, t in enumerate(turns)]
    turns = [2 * math.pi * k / 60 for k in range(60)]
    xs = [16 * math.sin(t) ** 3 for t in turns]
    ys = [13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t) for t in turns]
    return [(0.5 + x / 34, 0.45 - y / 34) for x, y in zip(xs, ys, strict=True)]
