"""A flyer while it is laid out: texts are wrapped and shrunk into boxes, and recorded as blocks in reading order."""

from __future__ import annotations

import colorsys
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openafm.core.errors import OpenAFMError
from openafm.data.drawing.canvas import Canvas, Color, text_width
from openafm.data.drawing.fonts import Font
from openafm.data.images.documents import Box

LEAST_SIZE = 15
_SPACING = 1.28


class NoRoomError(OpenAFMError):
    """A text does not fit into its box at a legible size."""


@dataclass(frozen=True)
class Block:
    """A text, unwrapped, and its words as a range of the canvas's regions. `field` is one of the event's, or empty."""

    text: str
    field: str
    first: int
    last: int


@dataclass(frozen=True)
class Palette:
    """Colors that contrast: paper with ink, and accent with the ink on it."""

    paper: Color
    ink: Color
    accent: Color
    accent_ink: Color
    soft: Color
    """Between paper and accent, close to the paper: for decoration behind text."""


class Sheet:
    """The canvas of a flyer with its colors, fonts and blocks."""

    def __init__(self, width: int, height: int, palette: Palette, fonts: tuple[Font, Font], rng: random.Random) -> None:
        self.canvas = Canvas(width, height, palette.paper)
        self.width, self.height, self.palette, self.rng = width, height, palette, rng
        self.title_font, self.text_font = fonts
        self.blocks: list[Block] = []

    def put(
        self,
        text: str,
        box: Box,
        size: int,
        *,
        field: str = "",
        fill: Color | None = None,
        align: Literal["left", "center", "right"] = "left",
        font: Font | None = None,
        middle: bool = False,
        least: int = LEAST_SIZE,
    ) -> float:
        """Draw a text into a box at the largest size up to `size`; return the y below it.

        Raises:
            NoRoomError: it does not fit.
        """
        left, top, right, bottom = box
        font = font or self.text_font
        lines: list[str] = []
        while size >= least:
            lines = self.canvas.wrap(text, font, size, right - left)
            broken = len(" ".join(lines).split()) > len(text.split()) and size > least and not _is_wide(text)
            if not broken and (len(lines) * _SPACING + 0.1) * size <= bottom - top:
                break
            size = min(int(size * 0.9), size - 1)
        else:
            raise NoRoomError(f"{text!r} does not fit into {right - left:.0f} x {bottom - top:.0f} pixels")
        if middle:
            top += (bottom - top - len(lines) * _SPACING * size) / 2
        first = len(self.canvas.regions)
        x = {"left": left, "center": (left + right) / 2, "right": right}[align]
        below = self.canvas.text_block(x, top, lines, font, size, fill or self.palette.ink, align=align, spacing=_SPACING)
        self.blocks.append(Block(text, field, first, len(self.canvas.regions)))
        return below

    def row(
        self, parts: Sequence[tuple[str, str]], box: Box, size: int, *, fill: Color | None = None, centered: bool = True
    ) -> float:
        """Draw (text, field) pairs side by side; below each other where the box is too narrow. Return the y below."""
        left, top, right, bottom = box
        texts = [text for text, _ in parts]
        widths = [text_width(text, self.text_font, size) for text in texts]
        gap = size * 1.2
        total = sum(widths) + gap * (len(parts) - 1)
        if total > right - left:
            align: Literal["left", "center"] = "center" if centered else "left"
            for text, field in parts:
                top = self.put(text, (left, top, right, bottom), size, field=field, fill=fill, align=align)
            return top
        x = (left + right - total) / 2 if centered else left
        for (text, field), width in zip(parts, widths, strict=True):
            self.put(text, (x, top, x + width + 1, top + size * 1.5), size, field=field, fill=fill)
            x += width + gap
        below: float = top + size * _SPACING
        return below

    def column(self, text: str, box: Box, size: int, *, field: str = "", fill: Color | None = None) -> None:
        """Draw a text in one column from top to bottom, as Chinese and Japanese posters do."""
        left, top, right, bottom = box
        count = max(len(text), 1)
        size = min(size, int((bottom - top) / (count * 1.15)), int((right - left) * 0.9))
        if size < LEAST_SIZE:
            raise NoRoomError(f"{text!r} does not fit into a column of {bottom - top:.0f} pixels")
        first = len(self.canvas.regions)
        color = fill or self.palette.ink
        self.canvas.text((left + right) / 2, top, text, self.title_font, size, color, anchor="mt", direction="ttb")
        self.blocks.append(Block(text, field, first, len(self.canvas.regions)))


def draw_palette(rng: random.Random) -> Palette:
    """Return colors whose ink contrasts with what is behind it."""
    hue = rng.random()
    accent_hue = (hue + rng.choice((0.0, 0.33, 0.5, 0.58, 0.66))) % 1
    is_dark = rng.random() < 0.3
    if is_dark:
        paper = _color(hue, rng.uniform(0.2, 0.7), rng.uniform(0.08, 0.28))
        accent = _color(accent_hue, rng.uniform(0.4, 0.9), rng.uniform(0.75, 0.98))
        ink, accent_ink = (250, 250, 245), (15, 15, 20)
        if luminance(accent) < 0.45:
            accent = _mixed(accent, (255, 255, 255), 0.5)
    else:
        paper = _color(hue, rng.uniform(0.0, 0.22), rng.uniform(0.93, 1.0))
        accent = _color(accent_hue, rng.uniform(0.55, 0.95), rng.uniform(0.3, 0.6))
        while luminance(accent) > 0.2:
            accent = _mixed(accent, (0, 0, 0), 0.25)
        ink = rng.choice(((15, 15, 20), (40, 30, 30), (20, 30, 60), accent))
        accent_ink = (255, 255, 255)
    return Palette(paper, ink, accent, accent_ink, _mixed(paper, accent, 0.16 if not is_dark else 0.12))


def luminance(color: Color) -> float:
    """Return the relative luminance of a color, 0 to 1."""
    red, green, blue = (math.pow(value / 255, 2.2) for value in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _color(hue: float, saturation: float, value: float) -> Color:
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def _mixed(first: Color, second: Color, share: float) -> Color:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def _is_wide(text: str) -> bool:
    return any("\u2e80" <= char <= "\u9fff" for char in text)
