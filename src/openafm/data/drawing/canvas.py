"""A drawing surface over Pillow that records what it draws: each word with the box of its ink, and the commands."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from openafm.core.libraries import needed
from openafm.data.drawing.fonts import Font, FontMissingError
from openafm.data.images.documents import Box, Region

if TYPE_CHECKING:
    from PIL.Image import Image

Color: TypeAlias = tuple[int, int, int]
Direction: TypeAlias = Literal["ltr", "ttb"]
Point: TypeAlias = tuple[float, float]

PNG_COMPRESSION = 4
# Characters that must not begin a line, or end one, in Chinese, Japanese and Korean text.
_NOT_FIRST = frozenset("、。，．・：；？！）」』】〕》〉ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ%％,.!?)]}”’")
_NOT_LAST = frozenset("（「『【〔《〈([{“‘")
_WORD = re.compile(r"\S+")
VISIBLE_INK = [ink if ink >= 16 else 0 for ink in range(256)]
"""Fainter ink, of 255, leaves some backgrounds unchanged: a box around it would be larger than what is visible."""


X_HEIGHT_MIDDLE = 0.25
"""Height of the centers of letters above the baseline, in sizes of the font: the middle of small letters."""


class LeavesCanvasError(ValueError):
    """A text is larger than what is left of the canvas."""


@dataclass(frozen=True)
class _Glyphs:
    """The ink of a word as a mask, its place relative to the pen, and how far the pen moves."""

    mask: Image | None
    left: int
    top: int
    advance: float


class Canvas:
    """An RGB image with drawing methods; text is recorded in `regions`, everything in `commands`.

    Coordinates are pixels from the top left corner. Text that would leave the canvas is an error, since its truth
    would be wrong.
    """

    def __init__(self, width: int, height: int, background: Color = (255, 255, 255)) -> None:
        with needed("Drawing", "Pillow", "images"):
            from PIL import Image, ImageDraw
        self.width, self.height, self.background = width, height, background
        self._image = Image.new("RGB", (width, height), background)
        self._draw = ImageDraw.Draw(self._image)
        self.regions: list[Region] = []
        self.commands: list[dict[str, object]] = [{"op": "canvas", "size": [width, height], "fill": list(background)}]

    def text(
        self,
        x: float,
        y: float,
        text: str,
        font: Font,
        size: int,
        fill: Color = (0, 0, 0),
        *,
        anchor: str = "la",
        direction: Direction = "ltr",
        kind: str = "word",
        outline: int = 0,
        outline_fill: Color = (255, 255, 255),
    ) -> tuple[Region, ...]:
        """Draw one line of text, or one column with direction `ttb`; return a region per word, with the box of its ink.

        Words are separated by white space; languages that write without spaces have one region per run.

        Args:
            x, y: where the anchor is.
            anchor: Pillow's two letters: `l`, `m`, `r`, then `a` (ascender), `t` (top, as `a`), `m`, `s` (baseline),
                `d` or `b` (descender); columns use `t`, `m` or `b` as the second letter.
            outline: width in pixels of an outline around the letters.

        Raises:
            FontMissingError: the font lacks a character.
            LeavesCanvasError: the text leaves the canvas.
        """
        if missing := font.missing(text):
            raise FontMissingError(f"{font.name} lacks {missing!r} of the text {text!r}; choose a font by Font.has(text)")
        placed = self._column(x, y, text, font, size, anchor) if direction == "ttb" else None
        if placed is None:
            placed = self._line(x, y, text, font, size, anchor)
        drawn = []
        for word, left, top in placed:
            region = self._word(word, left, top, font, size, fill, direction, kind, outline, outline_fill)
            if region is not None:
                drawn.append(region)
        first = len(self.regions)
        self.regions += drawn
        self.commands.append(
            {
                "op": "text",
                "text": text,
                "at": [x, y],
                "font": font.name,
                "size": size,
                "fill": list(fill),
                "anchor": anchor,
                "direction": direction,
                "kind": kind,
                "regions": [first, len(self.regions)],
            }
        )
        return tuple(drawn)

    def _line(self, x: float, y: float, text: str, font: Font, size: int, anchor: str) -> list[tuple[str, float, float]]:
        """The words of a line with the pen positions on the baseline."""
        ascent, descent = font.at(size).getmetrics()
        total = text_width(text, font, size)
        x -= {"l": 0.0, "m": total / 2, "r": total}[anchor[0]]
        y += {"a": ascent, "t": ascent, "m": (ascent - descent) / 2, "s": 0, "d": -descent, "b": -descent}[anchor[1]]
        space = text_width(" ", font, size)
        placed, at = [], 0
        for match in _WORD.finditer(text):
            x += space * (match.start() - at)
            placed.append((match[0], x, y))
            x += text_width(match[0], font, size)
            at = match.end()
        return placed

    def _column(self, x: float, y: float, text: str, font: Font, size: int, anchor: str) -> list[tuple[str, float, float]]:
        """The runs of a column with the positions of their top centers."""
        lengths = [_glyphs(word, font, size, 0, "ttb").advance for word in text.split()]
        gap = size / 2
        total = sum(lengths) + gap * max(len(lengths) - 1, 0)
        x += {"l": size / 2, "m": 0.0, "r": -size / 2}[anchor[0]]
        y -= {"a": 0.0, "t": 0.0, "s": 0.0, "m": total / 2, "b": total, "d": total}[anchor[1]]
        placed = []
        for word, length in zip(text.split(), lengths, strict=True):
            placed.append((word, x, y))
            y += length + gap
        return placed

    def _word(
        self,
        word: str,
        x: float,
        y: float,
        font: Font,
        size: int,
        fill: Color,
        direction: Direction,
        kind: str,
        outline: int,
        outline_fill: Color,
    ) -> Region | None:
        glyphs = _glyphs(word, font, size, 0, direction)
        if glyphs.mask is None:
            return None
        left, top = round(x) + glyphs.left, round(y) + glyphs.top
        box = (left, top, left + glyphs.mask.width, top + glyphs.mask.height)
        if box[0] < 0 or box[1] < 0 or box[2] > self.width or box[3] > self.height:
            raise LeavesCanvasError(f"{word!r} at {box} leaves the canvas of {self.width} x {self.height} pixels")
        if outline:
            around = _glyphs(word, font, size, outline, direction)
            if around.mask is not None:
                self._image.paste(outline_fill, (round(x) + around.left, round(y) + around.top), around.mask)
        self._image.paste(fill, (left, top), glyphs.mask)
        centers = () if direction == "ttb" else _centers(word, x, y - X_HEIGHT_MIDDLE * size, font, size)
        bounds = (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
        return Region(label=word, box=bounds, kind=kind, centers=centers)

    def text_block(
        self,
        x: float,
        y: float,
        lines: Sequence[str],
        font: Font,
        size: int,
        fill: Color = (0, 0, 0),
        *,
        align: Literal["left", "center", "right"] = "left",
        spacing: float = 1.25,
        kind: str = "word",
    ) -> float:
        """Draw lines below each other; return the y below the last one. `x` is the left, middle or right of the lines."""
        for line in lines:
            self.text(x, y, line, font, size, fill, anchor={"left": "la", "center": "ma", "right": "ra"}[align], kind=kind)
            y += size * spacing
        return y

    def line(self, points: Sequence[Point], fill: Color, width: int = 1) -> None:
        """Draw a line through points."""
        self._draw.line([tuple(point) for point in points], fill=fill, width=width, joint="curve")
        self._record("line", points=[list(point) for point in points], fill=list(fill), width=width)

    def rectangle(
        self, box: Box, fill: Color | None = None, outline: Color | None = None, width: int = 1, radius: float = 0
    ) -> None:
        """Draw a rectangle; right and bottom are exclusive."""
        left, top, right, bottom = box
        self._draw.rounded_rectangle((left, top, right - 1, bottom - 1), radius, fill=fill, outline=outline, width=width)
        self._record("rectangle", box=list(box), fill=_listed(fill), outline=_listed(outline), width=width, radius=radius)

    def ellipse(self, box: Box, fill: Color | None = None, outline: Color | None = None, width: int = 1) -> None:
        """Draw an ellipse into a box; right and bottom are exclusive."""
        left, top, right, bottom = box
        self._draw.ellipse((left, top, right - 1, bottom - 1), fill=fill, outline=outline, width=width)
        self._record("ellipse", box=list(box), fill=_listed(fill), outline=_listed(outline), width=width)

    def polygon(
        self, points: Sequence[Point], fill: Color | None = None, outline: Color | None = None, width: int = 1
    ) -> None:
        """Draw a polygon."""
        self._draw.polygon([tuple(point) for point in points], fill=fill, outline=outline, width=width)
        self._record("polygon", points=[list(p) for p in points], fill=_listed(fill), outline=_listed(outline), width=width)

    def paste(self, image: Image, x: int, y: int, *, label: str = "", kind: str = "object") -> None:
        """Paste an image; its alpha channel is its mask. A label records it as a region with the box of what is visible."""
        mask = image.getchannel("A") if image.mode in ("RGBA", "LA") else None
        self._image.paste(image.convert("RGB"), (x, y), mask)
        digest = hashlib.sha256(image.tobytes()).hexdigest()[:16]
        self._record("paste", at=[x, y], size=list(image.size), digest=digest, label=label)
        visible = mask.getbbox() if mask else (0, 0, *image.size)
        if label and visible:
            left, top, right, bottom = visible
            self.regions.append(Region(label=label, box=(x + left, y + top, x + right, y + bottom), kind=kind))

    def wrap(self, text: str, font: Font, size: int, width: float) -> list[str]:
        """Return the text in lines of at most this width: broken at spaces, and inside runs that are too long."""
        lines: list[str] = []
        for paragraph in text.split("\n"):
            line = ""
            for word in _WORD.findall(paragraph):
                longer = f"{line} {word}" if line else word
                if text_width(longer, font, size) <= width:
                    line = longer
                    continue
                if line and not _is_wide(word):
                    lines.append(line)
                    line = ""
                pieces = _broken(f"{line} {word}" if line else word, font, size, width)
                lines += pieces[:-1]
                line = pieces[-1]
            lines.append(line)
        return lines

    def fitting_size(self, text: str, font: Font, size: int, width: float, *, least: int = 8) -> int:
        """Return the largest size up to `size` at which a line is at most `width` wide, but no less than `least`."""
        needed_width = text_width(text, font, size)
        if needed_width <= width:
            return size
        fitting = max(int(size * width / needed_width), least)
        while fitting > least and text_width(text, font, fitting) > width:
            fitting -= 1
        return fitting

    def image(self) -> Image:
        """Return a copy of the image."""
        return self._image.copy()

    def png(self) -> bytes:
        """Return the image as PNG; equal drawings give equal bytes."""
        return png_bytes(self._image)

    def _record(self, op: str, **values: object) -> None:
        self.commands.append({"op": op, **values})


def text_width(text: str, font: Font, size: int) -> float:
    """Return how far the pen moves for a line of text: the sum over its words and spaces."""
    if " " not in text:
        return _length(text, font, size)
    words = text.split(" ")
    return sum(_length(word, font, size) for word in words) + _length(" ", font, size) * (len(words) - 1)


def png_bytes(image: Image) -> bytes:
    """Return an image as PNG with fixed settings."""
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=PNG_COMPRESSION)
    return out.getvalue()


def _centers(word: str, x: float, y: float, font: Font, size: int) -> tuple[Point, ...]:
    """Return the middle of the room that each character of a line takes, to a tenth of a pixel, at the height `y`."""
    ends = [_length(word[:count], font, size) for count in range(len(word) + 1)]
    return tuple((round(x + (start + end) / 2, 1), round(y, 1)) for start, end in itertools.pairwise(ends))


@functools.lru_cache(maxsize=8192)
def _length(text: str, font: Font, size: int) -> float:
    return float(font.at(size).getlength(text)) if text else 0.0


@functools.lru_cache(maxsize=2048)
def _glyphs(word: str, font: Font, size: int, outline: int, direction: Direction) -> _Glyphs:
    """The ink of a word: rows from the baseline (`ltr`), or columns from the top center (`ttb`)."""
    from PIL import Image, ImageDraw

    pillow = font.at(size)
    margin = size + outline
    if direction == "ttb":
        length = float(pillow.getlength(word, direction="ttb"))
        surface = Image.new("L", (2 * margin + size, round(length) + 2 * margin))
        origin, anchor = (margin + size / 2, margin), "mt"
    else:
        length = _length(word, font, size)
        surface = Image.new("L", (round(length) + 2 * margin, 2 * margin + size))
        origin, anchor = (margin, margin + size), "ls"
    ImageDraw.Draw(surface).text(origin, word, 255, pillow, anchor, stroke_width=outline, direction=direction)
    surface = surface.point(VISIBLE_INK)
    box = surface.getbbox()
    if box is None:
        return _Glyphs(None, 0, 0, length)
    left, top = box[0] - round(origin[0]), box[1] - round(origin[1])
    return _Glyphs(surface.crop(box), left, top, length)


def _broken(text: str, font: Font, size: int, width: float) -> list[str]:
    """A text without usable spaces in lines of at most this width, with the usual rules about punctuation."""
    lines, start = [], 0
    while text_width(text[start:], font, size) > width:
        end = start + 1
        while end < len(text) and text_width(text[start : end + 1], font, size) <= width:
            end += 1
        best = end
        while best > start + 1 and (text[best : best + 1] in _NOT_FIRST or text[best - 1] in _NOT_LAST):
            best -= 1
        if best == start + 1:
            best = end
        if (
            text[best - 1].isascii()
            and text[best - 1].isalnum()
            and text[best : best + 1].isalnum()
            and text[best].isascii()
        ):
            word_start = best
            while word_start > start and text[word_start - 1].isascii() and text[word_start - 1].isalnum():
                word_start -= 1
            best = word_start if word_start > start else best
        lines.append(text[start:best].strip())
        start = best
        while text[start : start + 1] == " ":
            start += 1
    lines.append(text[start:])
    return [line for line in lines if line] or [""]


def _is_wide(text: str) -> bool:
    """True for text of scripts that are written without spaces, and Chinese characters."""
    return any("\u2e80" <= char <= "\u9fff" or "\uff00" <= char <= "\uffef" or "\uf900" <= char <= "\ufaff" for char in text)


def _listed(color: Color | None) -> list[int] | None:
    return list(color) if color is not None else None
