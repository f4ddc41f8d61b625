"""Notes of a few words with a day, mostly a weekday: "dentist thursday 8:15". They train the way from a weekday to its date.

In messages with whole events the day is a few tokens of many; notes are short, so that a few hundred steps see thousands.
"""

from __future__ import annotations

import random

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import draw_reference, event_instructions, reference_week
from openafm.data.synthetic.rendering import text_of
from openafm.data.synthetic.schemas import PropertyDraft, object_schema
from openafm.data.synthetic.tasks.events import EVENT_SCHEMA
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_DATE_SHARES = {"weekday": 0.5, "tomorrow": 0.05, "day_after_tomorrow": 0.04, "today": 0.03, "day_month": 0.04}
_DATE_SHARES |= {"iso": 0.3, "numeric_year": 0.04}
_DATE_SCHEMA = object_schema("Day", [PropertyDraft("date", EVENT_SCHEMA["properties"]["date"], "never")])
_TIME_SHARE, _PLACE_SHARE, _LOWER_SHARE, _TITLE_FIRST_SHARE, _DATE_ONLY_SHARE = 0.5, 0.35, 0.3, 0.6, 0.6


def note_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a note and its date, or all fields of its event."""
    frames, today = frames_of(language, split), draw_reference_day(rng)
    date = frames.calendar.draw_date(rng, today, shares=_DATE_SHARES)
    text, event = _draw_note(rng, frames, date.text)
    event["date"] = date.value
    writer = rng.choices((event_instructions, reference_week, None), (0.5, 0.25, 0.25))[0]
    instructions = draw_reference(rng, frames, today) if writer is None else writer(today)
    if rng.random() < _DATE_ONLY_SHARE:
        schema, event = _DATE_SCHEMA, {"date": date.value}
    else:
        schema, event = EVENT_SCHEMA, {name: event[name] for name in EVENT_SCHEMA["x-order"] if name in event}
    return (
        Instructions(text=instructions),
        UserTurn(text=text, response_format=schema),
        AssistantTurn(text=compact_json(event)),
    )


def _draw_note(rng: random.Random, frames: LanguageFrames, date: str) -> tuple[str, dict[str, str]]:
    """Return the text of a note and the fields of its event but the date."""
    event = {"title": frames.draw_title(rng)[1]}
    parts = [event["title"], date]
    if rng.random() < _TIME_SHARE:
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
        return text.lower(), {name: value.lower() for name, value in event.items()}
    return text, event
