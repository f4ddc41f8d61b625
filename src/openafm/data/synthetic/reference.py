"""Instructions that state the day on which a message is read, and the days that follow it."""

from __future__ import annotations

import datetime
import random

from openafm.data.synthetic.rendering import Piece, render, text_of
from openafm.data.synthetic.text_files.frames import LanguageFrames
from openafm.data.synthetic.text_files.source_text import Frame

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CANONICAL_SHARE, _WEEK_SHARE = 0.35, 0.85


def reference_week(day: datetime.date) -> str:
    """Return instructions that state the day and list the coming week, so that "on Friday" is a lookup."""
    week = [day + datetime.timedelta(days=offset) for offset in range(1, 8)]
    listed = ", ".join(f"{_WEEKDAYS[d.weekday()]} {d:%m-%d}" if d.year == day.year else _dated(d) for d in week)
    return f"Today is {_dated(day)}; {listed}."


def event_instructions(day: datetime.date) -> str:
    """Return the canonical instructions of event extraction on `day`."""
    return f"Extract the event. {reference_week(day)}"


def event_instructions_today_only(day: datetime.date) -> str:
    """Return instructions that state only the reference day."""
    return f"Extract the event. Today is {_dated(day)}."


def draw_reference(rng: random.Random, frames: LanguageFrames, today: datetime.date) -> str:
    """Return a statement of the day, in most cases with a list of the days after it."""
    if rng.random() < _CANONICAL_SHARE:
        return reference_week(today)
    stated = _write(rng, frames, rng.choice(frames.instructions["today_format"]), today)
    text = fill(rng, rng.choice(frames.instructions["today"]), today=stated)
    if rng.random() >= _WEEK_SHARE:
        return text
    return f"{text}{rng.choice((' ', ' ', chr(10)))}{_draw_week(rng, frames, today)}"


def _draw_week(rng: random.Random, frames: LanguageFrames, today: datetime.date) -> str:
    """The coming seven days, or a part of a longer list; in rare cases in another order."""
    first = rng.choice((0, 1, 1, 1))
    days = [today + datetime.timedelta(offset) for offset in range(first, rng.choice((8, 8, 8, 15)))]
    if rng.random() < 0.1:
        rng.shuffle(days)
    item = rng.choice(frames.instructions["week_item"])
    listed = rng.choice((", ", ", ", "; ", "\n")).join(_write(rng, frames, item, day) for day in days)
    return fill(rng, rng.choice(frames.instructions["week"]), week=listed)


def fill(rng: random.Random, frame: Frame, **values: str) -> str:
    """Return the text of a frame whose slots have these values."""
    return text_of(render(frame, rng, lambda slot: (Piece(values[slot.name]),)))


def _write(rng: random.Random, frames: LanguageFrames, frame: Frame, day: datetime.date) -> str:
    return text_of(render(frame, rng, frames.calendar.date_resolver(day)))


def _dated(day: datetime.date) -> str:
    return f"{_WEEKDAYS[day.weekday()]} {day.isoformat()}"
