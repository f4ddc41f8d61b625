"""The design families of flyers that no model trains on."""

from __future__ import annotations

import math

from openafm.data.drawing.flyers.design_parts import PORTRAIT, TALL, WIDE, Design, put_extras
from openafm.data.drawing.flyers.sheet import Sheet
from openafm.data.synthetic.announcements import Announcement


def _ticket(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(sheet, content.lines, (56, top + 10, edge - 40, height - 20), 19)
    top = sheet.put(content.labels["date"], (edge + 36, 40, width - 20, 84), 20)
    top = sheet.put(content.date, (edge + 36, top + 4, width - 20, height * 0.5), 32, field="date")
    top = sheet.put(content.labels["time"], (edge + 36, top + 14, width - 20, height * 0.66), 20)
    sheet.put(content.time, (edge + 36, top + 4, width - 20, height * 0.88), 34, field="time")


def _newspaper(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(sheet, (content.free, *content.lines), (34, top + 30, middle - 20, height - 40), 22)
    low = sheet.put(content.place, (middle + 20, top + 30, width - 34, top + 230), 34, field="location")
    sheet.canvas.rectangle((middle + 20, low + 30, width - 34, max(height - 130, low + 40)), fill=palette.soft)
    sheet.put(content.host, (middle + 20, height - 116, width - 34, height - 30), 20)


def _badge(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(sheet, (content.free, *content.lines), (36, low + 8, width - 36, height - 16), 20, "center")


def _program(sheet: Sheet, content: Announcement) -> None:
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
    put_extras(sheet, (*content.lines, content.host), (left, max(top + 8, height * 0.66), width - 40, height - 24), 20)


HELD_OUT_DESIGNS = (
    Design("ticket", "held_out", WIDE, _ticket),
    Design("newspaper", "held_out", PORTRAIT, _newspaper),
    Design("badge", "held_out", PORTRAIT, _badge),
    Design("program", "held_out", PORTRAIT + TALL, _program),
)
