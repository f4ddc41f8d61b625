"""Pages set as documents and screens are: full lines of one font and size, symbols, colors of screens, underlined lines."""

from __future__ import annotations

import random

from openafm.data.drawing.base import Split
from openafm.data.drawing.canvas import Canvas, Color, text_width
from openafm.data.drawing.flyers.sheet import draw_palette
from openafm.data.drawing.fonts import Font
from openafm.data.drawing.words.texts import random_code, random_letters, random_number, random_word

_MARGIN = 3
_KINDS = {"word": 0.5, "letters": 0.25, "code": 0.15, "number": 0.1}
_INDENTED, _SHORT, _UNDERLINED = 0.15, 0.15, 0.06
_LEADING = (1.2, 1.7)
_MOST_LETTERS = 600
"""Letters of a page, so that its document fits into a row of training."""
_GRAYS = {"white": 0.55, "dark": 0.2, "colored": 0.25}
_LINKS = ((0, 0, 238), (0, 102, 204), (170, 30, 30), (20, 110, 60))


def draw_paragraph(
    canvas: Canvas, rng: random.Random, language: str, split: Split, font: Font, size: int, ink: Color
) -> list[str]:
    """Fill the canvas with lines, and return them."""
    left, room = _MARGIN + size / 3, canvas.width - 2 * _MARGIN - size
    step, y = size * rng.uniform(*_LEADING), _MARGIN + 0.9 * size
    lines: list[str] = []
    num_letters = 0
    while y + 0.9 * size + _MARGIN < canvas.height:
        indent = 1.5 * size if rng.random() < _INDENTED else 0.0
        width = (room - indent) * (rng.uniform(0.2, 1.0) if rng.random() < _SHORT else 1.0)
        line = _fitting(rng, language, split, font, size, width)
        if num_letters + len(line) > _MOST_LETTERS:
            break
        if line:
            is_link = rng.random() < _UNDERLINED
            color = rng.choice(_LINKS) if is_link and min(canvas.background) > 128 else ink
            canvas.text(left + indent, y, line, font, size, color, anchor="lm")
            if is_link:
                below = round(y + rng.uniform(0.42, 0.5) * size)
                right = left + indent + text_width(line, font, size)
                canvas.line([(left + indent, below), (right, below)], color, max(1, size // 14))
            lines.append(line)
        num_letters += len(line)
        y += step
    return lines


def draw_colors(rng: random.Random) -> tuple[Color, Color]:
    """Return the colors of paper and ink, from black on white to gray on a dark screen."""
    match rng.choices(tuple(_GRAYS), tuple(_GRAYS.values()))[0]:
        case "white":
            return _gray(rng, 232, 255), _gray(rng, 0, 125)
        case "dark":
            return _gray(rng, 0, 55), _gray(rng, 150, 255)
    palette = draw_palette(rng)
    return palette.paper, palette.ink


def _gray(rng: random.Random, low: int, high: int) -> Color:
    """Return a gray, some with a tint."""
    level, tint = rng.randint(low, high), rng.choice((0, 0, 8))
    red, green, blue = (min(255, max(0, level + rng.randint(-tint, tint))) for _ in range(3))
    return red, green, blue


def _fitting(rng: random.Random, language: str, split: Split, font: Font, size: int, width: float) -> str:
    """Return random words that fit into a width; words with letters that the font lacks are left out."""
    line = ""
    while True:
        match rng.choices(tuple(_KINDS), tuple(_KINDS.values()))[0]:
            case "word":
                word = random_word(rng, language, split)
            case "letters":
                word = random_letters(rng, language, split)
            case "code":
                word = random_code(rng, language, split)
            case _:
                word = random_number(rng)
        longer = f"{line} {word}".strip()
        if text_width(longer, font, size) > width:
            return line
        if not font.missing(word):
            line = longer
