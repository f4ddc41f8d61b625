"""What design families of flyers share: formats, the fields of an event, further lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from openafm.data.drawing.base import Split
from openafm.data.drawing.canvas import Color
from openafm.data.drawing.flyers.sheet import Sheet
from openafm.data.images.documents import Box
from openafm.data.synthetic.announcements import Announcement

Align = Literal["left", "center", "right"]
PORTRAIT = ((720, 1018), (680, 960), (760, 1000))
TALL = ((620, 1060), (600, 1000))
SQUARE = ((860, 860), (800, 880))
WIDE = ((1080, 480), (1000, 440))


@dataclass(frozen=True)
class Design:
    """A family: its formats (width, height) and the function that lays a sheet out."""

    name: str
    split: Split
    formats: tuple[tuple[int, int], ...]
    lay_out: Callable[[Sheet, Announcement], None]


def put_details(sheet: Sheet, content: Announcement, box: Box, size: int, *, labels: bool, align: Align = "left") -> float:
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


def put_extras(
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
