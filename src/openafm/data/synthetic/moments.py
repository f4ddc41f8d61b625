"""Dates and times as people write them, each with what it means relative to a reference day."""

from __future__ import annotations

import datetime
import functools
import random
from dataclasses import dataclass

from openafm.data.synthetic.lexicons import Calendar, lexicon
from openafm.data.synthetic.slots import bare, plain

FIRST_DAY = datetime.date(2024, 1, 1)
_NUM_DAYS = (datetime.date(2029, 12, 31) - FIRST_DAY).days + 1

# Ways to name a day, with their shares.
_DATE_KINDS = {
    "weekday": 0.30,
    "day_month": 0.20,
    "tomorrow": 0.13,
    "today": 0.10,
    "day_after_tomorrow": 0.07,
    "day_month_year": 0.06,
    "numeric": 0.06,
    "numeric_year": 0.04,
    "iso": 0.04,
}
_FIXED_OFFSETS = {"today": 0, "tomorrow": 1, "day_after_tomorrow": 2}
_FULL_YEAR = {"day_month_year", "numeric_year", "iso"}
# The hour and the half hour are the usual times.
_MINUTES = (0,) * 10 + (30,) * 5 + (15, 45) * 2 + (5, 10, 20, 25, 35, 40, 50, 55)


@dataclass(frozen=True)
class Phrase:
    """A date or time: `text` with its preposition, `bare` without, `value` as the answer has it."""

    text: str
    bare: str
    value: str


def draw_reference_day(rng: random.Random) -> datetime.date:
    """The day on which a message is read: any of 2024-2029."""
    return FIRST_DAY + datetime.timedelta(days=rng.randrange(_NUM_DAYS))


def draw_date(rng: random.Random, calendar: Calendar, today: datetime.date) -> Phrase:
    """A day on or after `today`.

    A weekday is the first such day strictly after `today`; a day and month without year is its next occurrence, `today`
    included.
    """
    kind = rng.choices(tuple(_DATE_KINDS), tuple(_DATE_KINDS.values()))[0]
    if kind in _FIXED_OFFSETS:
        offset = _FIXED_OFFSETS[kind]
    elif kind == "weekday":
        offset = rng.randint(1, 7)
    else:
        offset = rng.randrange(60 if rng.random() < 0.6 else 700 if kind in _FULL_YEAR else 365)
    day = today + datetime.timedelta(days=offset)
    text = rng.choice(getattr(calendar, kind)).format_map(date_slots(calendar, day))
    return Phrase(plain(text), bare(text), day.isoformat())


def draw_time(rng: random.Random, language: str) -> Phrase:
    """A time from 06:00 to 23:55, mostly of the day."""
    hour = rng.randint(8, 21) if rng.random() < 0.85 else rng.randint(6, 23)
    minute = rng.choice(_MINUTES)
    text = rng.choice(time_texts(language, hour, minute))
    return Phrase(plain(text), bare(text), f"{hour:02}:{minute:02}")


def date_slots(calendar: Calendar, day: datetime.date) -> dict[str, str]:
    """Values of the slots of a date."""
    return {
        "d": str(day.day),
        "dd": f"{day.day:02}",
        "m": str(day.month),
        "mm": f"{day.month:02}",
        "yyyy": str(day.year),
        "iso": day.isoformat(),
        "day": calendar.days[day.day - 1] if calendar.days else str(day.day),
        "month": calendar.months[day.month - 1],
        "weekday": calendar.weekdays[day.weekday()],
    }


@functools.cache
def time_texts(language: str, hour: int, minute: int) -> tuple[str, ...]:
    """Every way in which a language's lexicon writes a time."""
    calendar = lexicon(language, "train").calendar
    period = next((period.text for period in reversed(calendar.periods) if period.start <= hour), "")
    values = {"h": hour, "hh": f"{hour:02}", "h12": (hour - 1) % 12 + 1, "mm": f"{minute:02}", "period": period}
    return tuple(time.text.format_map(values) for time in calendar.times if time.fits(hour, minute))
