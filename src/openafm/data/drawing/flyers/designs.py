"""Design families of flyers. A family decides format, order, alignment and decoration; four families are held out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from openafm.data.drawing.base import Split
from openafm.data.drawing.canvas import Color
from openafm.data.drawing.flyers.content import FlyerContent
from openafm.data.drawing.flyers.sheet import Sheet
from openafm.data.images.documents import Box

Align = Literal["left", "center", "right"]
_HAS_COLUMNS = frozenset({"zh-Hans", "zh-Hant", "ja"})


@dataclass(frozen=True)
class Design:
    """A family: its formats (width, height) and the function that lays a sheet out."""

    name: str
    split: Split
    formats: tuple[tuple[int, int], ...]
    lay_out: Callable[[Sheet, FlyerContent], None]


def _details(sheet: Sheet, content: FlyerContent, box: Box, size: int, *, labels: bool, align: Align = "left") -> float:
    """Date, time and place below each other, or with their labels in front; the order varies. Returns the y below."""
    left, top, right, bottom = box
    fields = [("date", content.date, "date"), ("time", content.time, "time"), ("place", content.place, "location")]
    if sheet.rng.random() < 0.25:
        fields.insert(0, fields.pop())
    size = round(size * sheet.rng.uniform(0.95, 1.45))
    gap = size * 0.35
    for name, text, field in fields:
        if labels:
            label = content.labels[name]
            start = left + (right - left) * 0.34
            sheet.put(f"{label}:", (left, top, start - 12, bottom), size, fill=sheet.palette.ink)
            top = sheet.put(text, (start, top, right, bottom), size, field=field) + gap
        else:
            top = sheet.put(text, (left, top, right, bottom), size, field=field, align=align) + gap
    return top


def _extras(
    sheet: Sheet, texts: Sequence[str], box: Box, size: int, align: Align = "left", fill: Color | None = None
) -> None:
    """Lines that are not the event's, as many as there is room for."""
    left, top, right, bottom = box
    size = round(size * sheet.rng.uniform(0.95, 1.3))
    for text in texts:
        needed = size * 1.4 * len(sheet.canvas.wrap(text, sheet.text_font, size, right - left))
        if top + needed > bottom:
            return
        top = sheet.put(text, (left, top, right, bottom), size, align=align, fill=fill, least=size) + size * 0.2


def _centered(sheet: Sheet, content: FlyerContent) -> None:
    width, height, rng = sheet.width, sheet.height, sheet.rng
    margin = rng.randint(24, 40)
    frame = (margin, margin, width - margin, height - margin)
    sheet.canvas.rectangle(frame, outline=sheet.palette.accent, width=rng.randint(2, 8), radius=rng.choice((0, 0, 24)))
    left, right = margin + 34, width - margin - 34
    top = sheet.put(content.host, (left, margin + 40, right, margin + 110), 24, align="center")
    top = sheet.put(
        content.title,
        (left, top + 30, right, height * 0.45),
        84,
        field="title",
        align="center",
        font=sheet.title_font,
        fill=sheet.palette.accent if rng.random() < 0.5 else None,
    )
    sheet.canvas.line([(width * 0.35, top + 30), (width * 0.65, top + 30)], sheet.palette.accent, 4)
    top = _details(sheet, content, (left, top + 55, right, height * 0.8), 38, labels=False, align="center")
    _extras(sheet, (content.free, *content.lines), (left, top + 20, right, height - margin - 24), 22, "center")


def _banner(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette = sheet.width, sheet.height, sheet.palette
    low = height * sheet.rng.uniform(0.3, 0.4)
    sheet.canvas.rectangle((0, 0, width, low), fill=palette.accent)
    sheet.put(
        content.title,
        (40, 40, width - 40, low - 30),
        92,
        field="title",
        fill=palette.accent_ink,
        font=sheet.title_font,
        middle=True,
    )
    top = _details(sheet, content, (40, low + 40, width - 40, height * 0.74), 36, labels=sheet.rng.random() < 0.7)
    sheet.canvas.rectangle((0, height - 70, width, height), fill=palette.soft)
    _extras(sheet, (content.free, *content.lines), (40, max(top + 16, height * 0.6), width - 40, height - 84), 22)
    sheet.put(content.host, (40, height - 56, width - 40, height - 10), 22)


def _side_panel(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    edge = width * rng.uniform(0.34, 0.42)
    sheet.canvas.rectangle((0, 0, edge, height), fill=palette.accent)
    ink = palette.accent_ink
    top = sheet.put(content.date, (24, 60, edge - 20, height * 0.42), 52, field="date", fill=ink, font=sheet.title_font)
    top = sheet.put(content.time, (24, top + 24, edge - 20, height * 0.62), 44, field="time", fill=ink)
    _extras(sheet, content.lines, (24, max(top + 40, height * 0.6), edge - 20, height - 30), 19, fill=ink)
    top = sheet.put(content.title, (edge + 36, 70, width - 36, height * 0.55), 76, field="title", font=sheet.title_font)
    top = sheet.put(content.place, (edge + 36, top + 40, width - 36, height * 0.8), 34, field="location")
    _extras(sheet, (content.free, content.host), (edge + 36, top + 40, width - 36, height - 30), 22)


def _diagonal(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    high, low = height * rng.uniform(0.38, 0.44), height * rng.uniform(0.48, 0.54)
    if rng.random() < 0.5:
        high, low = low, high
    sheet.canvas.polygon([(0, 0), (width, 0), (width, high), (0, low)], fill=palette.accent)
    edge = min(high, low)
    sheet.put(
        content.title, (44, 50, width - 44, edge - 30), 96, field="title", fill=palette.accent_ink, font=sheet.title_font
    )
    top = _details(
        sheet,
        content,
        (44, max(high, low) + 24, width - 44, height * 0.84),
        38,
        labels=False,
        align=rng.choice(("left", "right")),
    )
    _extras(sheet, (content.host, *content.lines), (44, top + 10, width - 44, height - 24), 20, "right")


def _night(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    for _ in range(rng.randint(20, 60)):
        x, y, radius = rng.uniform(0, width), rng.uniform(height * 0.22, height * 0.5), rng.uniform(2, 26)
        sheet.canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=palette.soft)
    sheet.row(((content.date, "date"), (content.time, "time")), (36, 40, width - 36, height * 0.2), 34, fill=palette.accent)
    low = sheet.put(
        content.title,
        (36, height * 0.5, width - 36, height * 0.76),
        104,
        field="title",
        fill=palette.accent,
        font=sheet.title_font,
    )
    low = sheet.put(content.place, (36, low + 16, width - 36, height * 0.88), 34, field="location")
    _extras(sheet, (*content.lines, content.host), (36, low + 16, width - 36, height - 20), 20)


def _grid(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    top = sheet.put(
        content.title,
        (40, 44, width - 40, height * 0.36),
        84,
        field="title",
        font=sheet.title_font,
        align="center",
        middle=True,
    )
    top = height * 0.4
    cell_height = height * 0.2
    cells = [("date", content.date, "date"), ("time", content.time, "time"), ("place", content.place, "location")]
    rng.shuffle(cells)
    boxes = [(32, top, width / 2 - 10, top + cell_height), (width / 2 + 10, top, width - 32, top + cell_height)]
    boxes.append((32, top + cell_height + 20, width - 32, top + 2 * cell_height + 20))
    for (name, text, field), (left, high, right, low) in zip(cells, boxes, strict=True):
        sheet.canvas.rectangle((left, high, right, low), fill=palette.accent, radius=18)
        sheet.put(content.labels[name], (left + 20, high + 14, right - 20, high + 54), 22, fill=palette.accent_ink)
        sheet.put(text, (left + 20, high + 56, right - 20, low - 8), 40, field=field, fill=palette.accent_ink, middle=True)
    _extras(
        sheet,
        (content.free, content.host, *content.lines),
        (40, top + 2 * cell_height + 44, width - 40, height - 20),
        21,
        "center",
    )


def _sunburst(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    x, y, rays, reach = width / 2, height * rng.uniform(0.3, 0.6), rng.choice((10, 14, 18)), width + height
    for ray in range(0, 2 * rays, 2):
        angles = (math.pi * ray / rays, math.pi * (ray + 1) / rays)
        far = [(x + reach * math.cos(angle), y + reach * math.sin(angle)) for angle in angles]
        sheet.canvas.polygon([(x, y), *far], fill=palette.accent)
    card = (width * 0.1, height * 0.12, width * 0.9, height * 0.88)
    sheet.canvas.rectangle(card, fill=palette.paper, outline=palette.accent, width=6, radius=rng.choice((0, 30)))
    left, right = card[0] + 36, card[2] - 36
    top = sheet.put(
        content.title, (left, card[1] + 36, right, height * 0.46), 80, field="title", align="center", font=sheet.title_font
    )
    top = _details(sheet, content, (left, top + 26, right, height * 0.76), 34, labels=False, align="center")
    _extras(sheet, (content.free, *content.lines), (left, top + 8, right, card[3] - 16), 20, "center")


def _tear_off(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    low = height - 120
    top = sheet.put(
        content.title, (44, 44, width - 44, height * 0.34), 78, field="title", font=sheet.title_font, align="center"
    )
    top = _details(sheet, content, (44, top + 30, width - 44, height * 0.66), 34, labels=rng.random() < 0.6)
    _extras(sheet, (content.free, *content.lines, content.host), (44, top + 14, width - 44, low - 20), 22)
    count = rng.randint(4, 6)
    step = width / count
    sheet.canvas.line([(0, low), (width, low)], palette.ink, 2)
    for index in range(1, count):
        for part in range(6):
            y = low + part * 20
            sheet.canvas.line([(index * step, y), (index * step, min(y + 12, height))], palette.ink, 2)


def _columns(sheet: Sheet, content: FlyerContent) -> None:
    """A title from top to bottom in Chinese and Japanese; elsewhere a strip beside the text."""
    width, height, palette = sheet.width, sheet.height, sheet.palette
    edge = width * 0.74
    title = content.title.replace(" ", "")
    if content.language in _HAS_COLUMNS and not any(char.isascii() for char in title):
        sheet.canvas.rectangle((edge, 0, width, height), fill=palette.accent)
        sheet.column(content.title, (edge + 10, 40, width - 10, height - 40), 110, field="title", fill=palette.accent_ink)
        top = 60.0
    else:
        sheet.canvas.rectangle((width * 0.92, 0, width, height), fill=palette.accent)
        edge = width * 0.9
        top = sheet.put(content.title, (40, 56, edge - 20, height * 0.42), 84, field="title", font=sheet.title_font) + 30
    top = _details(sheet, content, (40, top, edge - 24, max(height * 0.62, top + 320)), 38, labels=sheet.rng.random() < 0.4)
    _extras(sheet, (content.free, content.host, *content.lines), (40, top + 40, edge - 24, height - 30), 22)


def _invitation(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette = sheet.width, sheet.height, sheet.palette
    for margin in (22, 30):
        sheet.canvas.rectangle((margin, margin, width - margin, height - margin), outline=palette.accent, width=2)
    for x in (52, width - 52):
        for y in (52, height - 52):
            sheet.canvas.polygon([(x - 12, y), (x, y - 12), (x + 12, y), (x, y + 12)], fill=palette.accent)
    left, right = 90, width - 90
    top = sheet.put(content.host, (left, 80, right, height * 0.26), 26, align="center")
    top = sheet.put(
        content.title, (left, top + 24, right, height * 0.54), 64, field="title", align="center", font=sheet.title_font
    )
    top = sheet.row(((content.date, "date"), (content.time, "time")), (left, top + 24, right, height * 0.74), 30)
    top = sheet.put(content.place, (left, top + 14, right, height * 0.86), 30, field="location", align="center")
    _extras(sheet, (content.free, *content.lines[:1]), (left, top + 14, right, height - 76), 20, "center")


def _photo(sheet: Sheet, content: FlyerContent) -> None:
    """Hills and a sky above the text."""
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    low = height * rng.uniform(0.36, 0.46)
    sheet.canvas.rectangle((0, 0, width, low), fill=palette.soft)
    radius, x = width * 0.09, width * rng.uniform(0.2, 0.8)
    sheet.canvas.ellipse((x - radius, low * 0.3 - radius, x + radius, low * 0.3 + radius), fill=palette.accent)
    for share, color in ((0.55, palette.accent), (0.75, palette.ink)):
        peaks = [(0.0, low)]
        for step in range(9):
            peaks.append((width * step / 8, low * (share + rng.uniform(-0.12, 0.12))))
        sheet.canvas.polygon([*peaks, (width, low)], fill=color)
    top = sheet.put(content.title, (36, low + 24, width - 36, height * 0.68), 72, field="title", font=sheet.title_font)
    top = sheet.row(
        ((content.date, "date"), (content.time, "time")), (36, top + 14, width - 36, height * 0.82), 32, centered=False
    )
    top = sheet.put(content.place, (36, top + 10, width - 36, height * 0.9), 32, field="location")
    _extras(sheet, (content.free, *content.lines), (36, top + 12, width - 36, height - 16), 20)


def _confetti(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    for _ in range(160):
        x, y = rng.uniform(0, width), rng.uniform(0, height)
        if 70 < x < width - 70 and 70 < y < height - 70:
            continue
        size = rng.uniform(4, 16)
        color = rng.choice((palette.accent, palette.soft, palette.ink))
        if rng.random() < 0.5:
            sheet.canvas.ellipse((x - size, y - size, x + size, y + size), fill=color)
        else:
            sheet.canvas.polygon([(x, y - size), (x + size, y), (x - size, y + size)], fill=color)
    sheet.canvas.rectangle((86, 86, width - 86, height - 86), fill=palette.paper)
    left, right = 100, width - 100
    top = sheet.put(content.free, (left, 100, right, 170), 28, align="center")
    top = sheet.put(
        content.title,
        (left, top + 20, right, height * 0.48),
        78,
        field="title",
        align="center",
        font=sheet.title_font,
        fill=palette.accent,
    )
    top = _details(sheet, content, (left, top + 26, right, height * 0.76), 34, labels=False, align="center")
    _extras(sheet, (*content.lines, content.host), (left, top + 16, right, height - 96), 21, "center")


def _ticket(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette = sheet.width, sheet.height, sheet.palette
    edge = width * 0.7
    for y in range(0, height, 24):
        sheet.canvas.line([(edge, y), (edge, y + 12)], palette.accent, 4)
    for y in (0, height):
        sheet.canvas.ellipse((edge - 26, y - 26, edge + 26, y + 26), fill=palette.accent)
    sheet.canvas.rectangle((0, 0, 28, height), fill=palette.accent)
    top = sheet.put(content.host, (56, 30, edge - 40, 84), 22)
    top = sheet.put(content.title, (56, top + 14, edge - 40, height * 0.58), 66, field="title", font=sheet.title_font)
    top = sheet.put(content.place, (56, top + 12, edge - 40, height * 0.78), 30, field="location")
    _extras(sheet, content.lines, (56, top + 10, edge - 40, height - 20), 19)
    top = sheet.put(content.labels["date"], (edge + 36, 40, width - 20, 84), 20)
    top = sheet.put(content.date, (edge + 36, top + 4, width - 20, height * 0.5), 32, field="date")
    top = sheet.put(content.labels["time"], (edge + 36, top + 14, width - 20, height * 0.66), 20)
    sheet.put(content.time, (edge + 36, top + 4, width - 20, height * 0.88), 34, field="time")


def _newspaper(sheet: Sheet, content: FlyerContent) -> None:
    width, height, palette = sheet.width, sheet.height, sheet.palette
    for y, thickness in ((36, 5), (46, 2)):
        sheet.canvas.line([(30, y), (width - 30, y)], palette.ink, thickness)
    top = sheet.put(
        content.title, (30, 62, width - 30, height * 0.3), 92, field="title", font=sheet.title_font, align="center"
    )
    sheet.canvas.line([(30, top + 14), (width - 30, top + 14)], palette.ink, 2)
    top = sheet.row(((content.date, "date"), (content.time, "time")), (30, top + 24, width - 30, top + 140), 28)
    sheet.canvas.line([(30, top + 10), (width - 30, top + 10)], palette.ink, 2)
    middle = width / 2
    sheet.canvas.line([(middle, top + 24), (middle, height - 40)], palette.ink, 1)
    _extras(sheet, (content.free, *content.lines), (34, top + 30, middle - 20, height - 40), 22)
    low = sheet.put(content.place, (middle + 20, top + 30, width - 34, top + 230), 34, field="location")
    sheet.canvas.rectangle((middle + 20, low + 30, width - 34, max(height - 130, low + 40)), fill=palette.soft)
    sheet.put(content.host, (middle + 20, height - 116, width - 34, height - 30), 20)


def _badge(sheet: Sheet, content: FlyerContent) -> None:
    """A disc with the day on it."""
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    top = sheet.put(
        content.title, (36, 44, width - 36, height * 0.32), 84, field="title", font=sheet.title_font, align="center"
    )
    radius, y = width * 0.27, max(top + width * 0.3, height * 0.5)
    x = width * rng.choice((0.34, 0.5, 0.66))
    points = [
        (
            x + radius * (1.0 if index % 2 else 1.12) * math.cos(math.pi * index / 24),
            y + radius * (1.0 if index % 2 else 1.12) * math.sin(math.pi * index / 24),
        )
        for index in range(48)
    ]
    sheet.canvas.polygon(points, fill=palette.accent)
    inner = (x - radius * 0.78, y - radius * 0.55, x + radius * 0.78, y + radius * 0.55)
    half = (inner[1] + inner[3]) / 2 + radius * 0.1
    sheet.put(
        content.date,
        (inner[0], inner[1], inner[2], half),
        44,
        field="date",
        align="center",
        fill=palette.accent_ink,
        middle=True,
    )
    sheet.put(
        content.time, (inner[0], half + 6, inner[2], inner[3]), 38, field="time", align="center", fill=palette.accent_ink
    )
    low = sheet.put(
        content.place, (36, y + radius * 1.15 + 16, width - 36, height * 0.9), 34, field="location", align="center"
    )
    _extras(sheet, (content.free, *content.lines), (36, low + 8, width - 36, height - 16), 20, "center")


def _program(sheet: Sheet, content: FlyerContent) -> None:
    """A list of points on a line, with the event's start among other times."""
    width, height, palette = sheet.width, sheet.height, sheet.palette
    sheet.put(content.free, (40, 36, width - 40, 80), 24)
    top = sheet.put(content.title, (40, 86, width - 40, height * 0.34), 76, field="title", font=sheet.title_font)
    left = 84
    sheet.canvas.line([(56, top + 40), (56, height * 0.82)], palette.accent, 5)
    rows = [(content.labels["date"], content.date, "date"), (content.labels["time"], content.time, "time")]
    rows.append((content.labels["place"], content.place, "location"))
    top += 34
    for label, text, field in rows:
        sheet.canvas.ellipse((46, top + 8, 66, top + 28), fill=palette.accent)
        top = sheet.put(label, (left, top, width - 40, top + 40), 20)
        top = sheet.put(text, (left, top, width - 40, height * 0.84), 34, field=field) + 16
    _extras(sheet, (*content.lines, content.host), (left, max(top + 8, height * 0.66), width - 40, height - 24), 20)


_PORTRAIT = ((720, 1018), (680, 960), (760, 1000))
_TALL = ((620, 1060), (600, 1000))
_SQUARE = ((860, 860), (800, 880))
_WIDE = ((1080, 480), (1000, 440))

DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        Design("centered", "train", _PORTRAIT + _SQUARE, _centered),
        Design("banner", "train", _PORTRAIT, _banner),
        Design("side_panel", "train", (*_SQUARE, (1000, 800)), _side_panel),
        Design("diagonal", "train", _PORTRAIT, _diagonal),
        Design("night", "train", _PORTRAIT + _TALL, _night),
        Design("grid", "train", _PORTRAIT, _grid),
        Design("sunburst", "train", _PORTRAIT, _sunburst),
        Design("tear_off", "train", _PORTRAIT, _tear_off),
        Design("columns", "train", _PORTRAIT + _TALL, _columns),
        Design("invitation", "train", ((900, 660), (960, 700)), _invitation),
        Design("photo", "train", _PORTRAIT + _SQUARE, _photo),
        Design("confetti", "train", _PORTRAIT, _confetti),
        Design("ticket", "held_out", _WIDE, _ticket),
        Design("newspaper", "held_out", _PORTRAIT, _newspaper),
        Design("badge", "held_out", _PORTRAIT, _badge),
        Design("program", "held_out", _PORTRAIT + _TALL, _program),
    )
}


def draw_design(rng: random.Random, split: Split) -> Design:
    """Return a design family of a split."""
    return rng.choice([design for design in DESIGNS.values() if design.split == split])
