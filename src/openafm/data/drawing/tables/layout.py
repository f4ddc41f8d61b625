"""Lay out cells as a table on a canvas, in many styles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from openafm.data.drawing.base import Split
from openafm.data.drawing.canvas import Canvas, text_width
from openafm.data.drawing.choices import color_of
from openafm.data.drawing.fonts import Font

_HELD_OUT = ("ledger", "night")
_GAP = 4


@dataclass(frozen=True)
class TableDesign:
    """A family of table styles: colors, and which lines are drawn."""

    background: str
    ink: str
    header: str | None
    header_ink: str
    stripe: str | None
    rule: str
    rules: str
    """`grid`, `rows`, `header`, `outer` or `none`."""


DESIGNS = {
    "plain": TableDesign("#ffffff", "#000000", None, "#000000", None, "#000000", "grid"),
    "booktabs": TableDesign("#ffffff", "#141414", None, "#000000", None, "#000000", "header"),
    "striped": TableDesign("#ffffff", "#212529", "#343a40", "#ffffff", "#e9ecef", "#ced4da", "rows"),
    "blue": TableDesign("#ffffff", "#1f2937", "#2563eb", "#ffffff", "#eff6ff", "#bfdbfe", "grid"),
    "green": TableDesign("#fafdfa", "#143c28", "#107a57", "#ffffff", "#e2f2ea", "#aacdbc", "rows"),
    "soft": TableDesign("#fcfbf9", "#44403c", "#e7e5e4", "#292524", None, "#d6d3d1", "rows"),
    "sheet": TableDesign("#ffffff", "#000000", "#f2f2f2", "#3c3c3c", None, "#c8c8c8", "grid"),
    "bare": TableDesign("#ffffff", "#282828", None, "#6e6e6e", None, "#ffffff", "none"),
    "boxed": TableDesign("#fffdf7", "#32281e", "#f5deb3", "#462d14", "#fdf6e3", "#967850", "outer"),
    "ledger": TableDesign("#fdfaf0", "#1e325a", None, "#961e1e", "#f0f4e8", "#b4bed2", "rows"),
    "night": TableDesign("#181a20", "#e4e7ed", "#303644", "#ffffff", "#21242d", "#464c5a", "grid"),
}


@dataclass(frozen=True)
class TableStyle:
    """One style: a design with the choices made."""

    design: str
    size: int
    padding: tuple[int, int]
    first_bold: bool
    align_numbers: str

    @property
    def look(self) -> TableDesign:
        return DESIGNS[self.design]


def draw_table_style(rng: random.Random, split: Split) -> TableStyle:
    """Return a style of a split."""
    return TableStyle(
        design=rng.choice([name for name in DESIGNS if (name in _HELD_OUT) == (split == "held_out")]),
        size=rng.choice((12, 13, 14, 15, 16, 18)),
        padding=rng.choice(((6, 3), (8, 5), (10, 6), (14, 8))),
        first_bold=rng.random() < 0.3,
        align_numbers=rng.choice(("right", "right", "left", "center")),
    )


@dataclass(frozen=True)
class _Cell:
    lines: tuple[str, ...]
    font: Font
    is_number: bool


def lay_out_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: TableStyle,
    font: Font,
    bold: Font,
    *,
    numeric: Sequence[bool],
    widest: int = 640,
) -> Canvas:
    """Draw a title and a table on a canvas of the size that they need. Long cells are wrapped.

    Args:
        numeric: columns of numbers, which are aligned by the style.
        widest: width at which columns of text are wrapped.
    """
    size, (pad_x, pad_y) = style.size, style.padding
    limit = max(widest // max(len(header), 1), 6 * size)
    ruler = Canvas(1, 1)
    grid = [[_cell(ruler, text, bold, size, limit, False) for text in header]]
    for row in rows:
        fonts = [bold if style.first_bold and column == 0 else font for column in range(len(row))]
        grid.append(
            [
                _cell(ruler, text, used, size, limit, is_number)
                for text, used, is_number in zip(row, fonts, numeric, strict=True)
            ]
        )
    line_height = round(size * 1.35)
    widths = [
        max(round(max(text_width(line, cell.font, size) for line in cell.lines)) for cell in column) + 2 * pad_x + _GAP
        for column in zip(*grid, strict=True)
    ]
    heights = [max(len(cell.lines) for cell in row) * line_height + 2 * pad_y for row in grid]
    margin = 12 + pad_x
    title_lines = ruler.wrap(title, bold, size + 4, max(sum(widths), 12 * size)) if title else []
    title_height = len(title_lines) * round((size + 4) * 1.4) + (8 if title else 0)
    title_width = max((round(text_width(line, bold, size + 4)) for line in title_lines), default=0)
    width = max(sum(widths), title_width) + 2 * margin + _GAP
    canvas = Canvas(width, sum(heights) + title_height + 2 * margin, color_of(style.look.background))
    canvas.text_block(margin, margin, title_lines, bold, size + 4, color_of(style.look.ink), spacing=1.4, kind="title")
    _draw_lines(canvas, style, margin, margin + title_height, widths, heights)
    y = margin + title_height
    for index, (cells, height) in enumerate(zip(grid, heights, strict=True)):
        x = margin
        for cell, cell_width, is_number in zip(cells, widths, numeric, strict=True):
            align = style.align_numbers if is_number else "left"
            at = {"left": x + pad_x, "right": x + cell_width - pad_x, "center": x + cell_width / 2}[align]
            anchor = {"left": "la", "right": "ra", "center": "ma"}[align]
            fill = color_of(style.look.header_ink if index == 0 else style.look.ink)
            for number, line in enumerate(cell.lines):
                top = y + pad_y + number * line_height
                canvas.text(at, top, line, cell.font, size, fill, anchor=anchor, kind="header" if index == 0 else "cell")
            x += cell_width
        y += height
    return canvas


def _cell(ruler: Canvas, text: str, font: Font, size: int, limit: int, is_number: bool) -> _Cell:
    longest = max((text_width(word, font, size) for word in text.split()), default=0.0)
    lines = [text] if is_number else ruler.wrap(text, font, size, max(limit, min(longest, 2 * limit)))
    return _Cell(lines=tuple(lines) or ("",), font=font, is_number=is_number)


def _draw_lines(
    canvas: Canvas, style: TableStyle, left: int, top: int, widths: Sequence[int], heights: Sequence[int]
) -> None:
    """Draw the backgrounds of the header and of stripes, and the lines of the design."""
    look, rule = style.look, color_of(style.look.rule)
    right, bottom = left + sum(widths), top + sum(heights)
    edges = [top]
    for height in heights:
        edges.append(edges[-1] + height)
    if look.header is not None:
        canvas.rectangle((left, top, right, edges[1]), fill=color_of(look.header))
    if look.stripe is not None:
        for index in range(2, len(heights), 2):
            canvas.rectangle((left, edges[index], right, edges[index + 1]), fill=color_of(look.stripe))
    if look.rules in ("grid", "rows"):
        for edge in edges:
            canvas.line([(left, edge), (right, edge)], rule)
    if look.rules == "grid":
        x = left
        for width in (0, *widths):
            x += width
            canvas.line([(x, top), (x, bottom)], rule)
    if look.rules == "header":
        canvas.line([(left, top), (right, top)], rule, 2)
        canvas.line([(left, edges[1]), (right, edges[1])], rule)
        canvas.line([(left, bottom), (right, bottom)], rule, 2)
    if look.rules == "outer":
        canvas.rectangle((left, top, right, bottom), outline=rule, width=2)
        canvas.line([(left, edges[1]), (right, edges[1])], rule, 2)
