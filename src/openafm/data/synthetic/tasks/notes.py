"""Notes of a few words with a day, mostly a weekday: "dentist thursday 8:15". They train the way from a weekday to its date.

In messages with whole events the day is a few tokens of many; notes are short, so that a few hundred steps see thousands.
The task `agenda` asks for several notes under one reference week, with all kinds of days: a note costs half of the tokens.
"""

from __future__ import annotations

import datetime
import random

from openafm.data.synthetic.calendar import Phrase, draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import draw_reference, event_instructions, reference_week
from openafm.data.synthetic.rendering import lower, text_of
from openafm.data.synthetic.schemas import PropertyDraft, object_schema
from openafm.data.synthetic.tasks.events import EVENT_SCHEMA
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_DATE_SHARES = {"weekday": 0.5, "tomorrow": 0.05, "day_after_tomorrow": 0.04, "today": 0.03, "day_month": 0.04}
_DATE_SHARES |= {"iso": 0.3, "numeric_year": 0.04}
_AGENDA_DATE_SHARES = {"weekday": 0.24, "today": 0.1, "tomorrow": 0.16, "day_after_tomorrow": 0.1}
_AGENDA_DATE_SHARES |= {"next_week": 0.06, "in_days": 0.04, "in_weeks": 0.04, "day_only": 0.05, "day_month": 0.12}
_AGENDA_DATE_SHARES |= {"numeric": 0.04, "day_month_year": 0.04, "numeric_year": 0.04, "iso": 0.06}
_DATE, _TIME = (PropertyDraft(name, EVENT_SCHEMA["properties"][name], "never") for name in ("date", "time"))
_DATE_SCHEMA, _WHEN_SCHEMA = object_schema("Day", [_DATE]), object_schema("When", [_DATE, _TIME])
_TIME_SHARE, _PLACE_SHARE, _LOWER_SHARE, _TITLE_FIRST_SHARE, _DATE_ONLY_SHARE = 0.5, 0.35, 0.3, 0.6, 0.6
_AGENDA_TIME_SHARE, _MOST_NOTES = 0.8, 8


def note_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a note and its date, or all fields of its event."""
    frames, today = frames_of(language, split), draw_reference_day(rng)
    date = frames.calendar.draw_date(rng, today, shares=_DATE_SHARES)
    text, event = _draw_note(rng, frames, date)
    instructions = _draw_instructions(rng, frames, today)
    schema = _DATE_SCHEMA if rng.random() < _DATE_ONLY_SHARE else EVENT_SCHEMA
    return (Instructions(text=instructions), *_note_and_answer(text, event, schema))


def agenda_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return two to eight notes to one reference, each with its date, its date and time, or all fields of its event."""
    frames, today = frames_of(language, split), draw_reference_day(rng)
    turns: list[Turn] = [Instructions(text=_draw_instructions(rng, frames, today))]
    schema = rng.choices((_DATE_SCHEMA, _WHEN_SCHEMA, EVENT_SCHEMA), (0.35, 0.35, 0.3))[0]
    for _ in range(rng.randint(2, _MOST_NOTES)):
        date = frames.calendar.draw_date(rng, today, shares=_AGENDA_DATE_SHARES)
        text, event = _draw_note(rng, frames, date, time_share=1.0 if schema is _WHEN_SCHEMA else _AGENDA_TIME_SHARE)
        turns += _note_and_answer(text, event, schema)
    return tuple(turns)


def _draw_instructions(rng: random.Random, frames: LanguageFrames, today: datetime.date) -> str:
    writer = rng.choices((event_instructions, reference_week, None), (0.5, 0.25, 0.25))[0]
    return draw_reference(rng, frames, today) if writer is None else writer(today)


def _note_and_answer(text: str, event: dict[str, str], schema: JsonSchema) -> tuple[UserTurn, AssistantTurn]:
    """Return the turns of a note. The answer has those fields of its event that the schema names."""
    answer = {name: event[name] for name in schema["x-order"] if name in event}
    return UserTurn(text=text, response_format=schema), AssistantTurn(text=compact_json(answer))


def _draw_note(
    rng: random.Random, frames: LanguageFrames, date: Phrase, time_share: float = _TIME_SHARE
) -> tuple[str, dict[str, str]]:
    """Return the text of a note and the fields of its event."""
    event = {"title": frames.draw_title(rng)[1]}
    parts = [event["title"], date.text]
    if rng.random() < time_share:
        time = frames.calendar.draw_time(rng)
        event["time"] = time.value
        parts.append(time.text)
    if rng.random() < _PLACE_SHARE:
        pieces, event["location"] = frames.draw_place(rng)
        parts.append(text_of(pieces))
    if rng.random() >= _TITLE_FIRST_SHARE:
        rng.shuffle(parts)
    text = rng.choice((" ", " ", ", ")).join(parts)
    if rng.random() < _LOWER_SHARE:
        text, event = lower(text, frames.language), {name: lower(value, frames.language) for name, value in event.items()}
    return text, event | {"date": date.value}
