"""Design families of flyers. A family decides format, order, alignment and decoration."""

from __future__ import annotations

import math
import random

from openafm.data.drawing.base import Split
from openafm.data.drawing.flyers.design_parts import PORTRAIT, SQUARE, TALL, Design, put_details, put_extras
from openafm.data.drawing.flyers.held_out_designs import HELD_OUT_DESIGNS
from openafm.data.drawing.flyers.sheet import Sheet
from openafm.data.synthetic.announcements import Announcement

_HAS_COLUMNS = frozenset({"zh-Hans", "zh-Hant", "ja"})


def _centered(sheet: Sheet, content: Announcement) -> None:
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
    top = put_details(sheet, content, (left, top + 55, right, height * 0.8), 38, labels=False, align="center")
    put_extras(sheet, (content.free, *content.lines), (left, top + 20, right, height - margin - 24), 22, "center")


def _banner(sheet: Sheet, content: Announcement) -> None:
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
    top = put_details(sheet, content, (40, low + 40, width - 40, height * 0.74), 36, labels=sheet.rng.random() < 0.7)
    sheet.canvas.rectangle((0, height - 70, width, height), fill=palette.soft)
    put_extras(sheet, (content.free, *content.lines), (40, max(top + 16, height * 0.6), width - 40, height - 84), 22)
    sheet.put(content.host, (40, height - 56, width - 40, height - 10), 22)


def _side_panel(sheet: Sheet, content: Announcement) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    edge = width * rng.uniform(0.34, 0.42)
    sheet.canvas.rectangle((0, 0, edge, height), fill=palette.accent)
    ink = palette.accent_ink
    top = sheet.put(content.date, (24, 60, edge - 20, height * 0.42), 52, field="date", fill=ink, font=sheet.title_font)
    top = sheet.put(content.time, (24, top + 24, edge - 20, height * 0.62), 44, field="time", fill=ink)
    put_extras(sheet, content.lines, (24, max(top + 40, height * 0.6), edge - 20, height - 30), 19, fill=ink)
    top = sheet.put(content.title, (edge + 36, 70, width - 36, height * 0.55), 76, field="title", font=sheet.title_font)
    top = sheet.put(content.place, (edge + 36, top + 40, width - 36, height * 0.8), 34, field="location")
    put_extras(sheet, (content.free, content.host), (edge + 36, top + 40, width - 36, height - 30), 22)


def _diagonal(sheet: Sheet, content: Announcement) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    high, low = height * rng.uniform(0.38, 0.44), height * rng.uniform(0.48, 0.54)
    if rng.random() < 0.5:
        high, low = low, high
    sheet.canvas.polygon([(0, 0), (width, 0), (width, high), (0, low)], fill=palette.accent)
    edge = min(high, low)
    sheet.put(
        content.title, (44, 50, width - 44, edge - 30), 96, field="title", fill=palette.accent_ink, font=sheet.title_font
    )
    top = put_details(
        sheet,
        content,
        (44, max(high, low) + 24, width - 44, height * 0.84),
        38,
        labels=False,
        align=rng.choice(("left", "right")),
    )
    put_extras(sheet, (content.host, *content.lines), (44, top + 10, width - 44, height - 24), 20, "right")


def _night(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(sheet, (*content.lines, content.host), (36, low + 16, width - 36, height - 20), 20)


def _grid(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(
        sheet,
        (content.free, content.host, *content.lines),
        (40, top + 2 * cell_height + 44, width - 40, height - 20),
        21,
        "center",
    )


def _sunburst(sheet: Sheet, content: Announcement) -> None:
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
    top = put_details(sheet, content, (left, top + 26, right, height * 0.76), 34, labels=False, align="center")
    put_extras(sheet, (content.free, *content.lines), (left, top + 8, right, card[3] - 16), 20, "center")


def _tear_off(sheet: Sheet, content: Announcement) -> None:
    width, height, palette, rng = sheet.width, sheet.height, sheet.palette, sheet.rng
    low = height - 120
    top = sheet.put(
        content.title, (44, 44, width - 44, height * 0.34), 78, field="title", font=sheet.title_font, align="center"
    )
    top = put_details(sheet, content, (44, top + 30, width - 44, height * 0.66), 34, labels=rng.random() < 0.6)
    put_extras(sheet, (content.free, *content.lines, content.host), (44, top + 14, width - 44, low - 20), 22)
    count = rng.randint(4, 6)
    step = width / count
    sheet.canvas.line([(0, low), (width, low)], palette.ink, 2)
    for index in range(1, count):
        for part in range(6):
            y = low + part * 20
            sheet.canvas.line([(index * step, y), (index * step, min(y + 12, height))], palette.ink, 2)


def _columns(sheet: Sheet, content: Announcement) -> None:
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
    top = put_details(
        sheet, content, (40, top, edge - 24, max(height * 0.62, top + 320)), 38, labels=sheet.rng.random() < 0.4
    )
    put_extras(sheet, (content.free, content.host, *content.lines), (40, top + 40, edge - 24, height - 30), 22)


def _invitation(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(sheet, (content.free, *content.lines[:1]), (left, top + 14, right, height - 76), 20, "center")


def _photo(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(sheet, (content.free, *content.lines), (36, top + 12, width - 36, height - 16), 20)


def _confetti(sheet: Sheet, content: Announcement) -> None:
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
    top = put_details(sheet, content, (left, top + 26, right, height * 0.76), 34, labels=False, align="center")
    put_extras(sheet, (*content.lines, content.host), (left, top + 16, right, height - 96), 21, "center")


DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        Design("centered", "train", PORTRAIT + SQUARE, _centered),
        Design("banner", "train", PORTRAIT, _banner),
        Design("side_panel", "train", (*SQUARE, (1000, 800)), _side_panel),
        Design("diagonal", "train", PORTRAIT, _diagonal),
        Design("night", "train", PORTRAIT + TALL, _night),
        Design("grid", "train", PORTRAIT, _grid),
        Design("sunburst", "train", PORTRAIT, _sunburst),
        Design("tear_off", "train", PORTRAIT, _tear_off),
        Design("columns", "train", PORTRAIT + TALL, _columns),
        Design("invitation", "train", ((900, 660), (960, 700)), _invitation),
        Design("photo", "train", PORTRAIT + SQUARE, _photo),
        Design("confetti", "train", PORTRAIT, _confetti),
        *HELD_OUT_DESIGNS,
    )
}


def draw_design(rng: random.Random, split: Split) -> Design:
    """Return a design family of a split."""
    return rng.choice([design for design in DESIGNS.values() if design.split == split])
