"""Event extraction: a message in, `{"title":...,"date":...,"time":...,"location":...}` out; null or [] without an event."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import (
    draw_reference,
    event_instructions,
    event_instructions_today_only,
    fill,
    reference_week,
)
from openafm.data.synthetic.schemas import (
    STYLES,
    TIME_PATTERN,
    PropertyDraft,
    answer_object,
    nullable,
    object_schema,
    styled,
)
from openafm.data.synthetic.tasks.messages import STATED, Message, StatedShares, draw_message, draw_other_message
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

EVENT_SCHEMA: JsonSchema = {
    "title": "Event",
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "date": {"type": "string", "format": "date"},
        "time": {"type": "string", "pattern": TIME_PATTERN},
        "location": {"type": "string"},
    },
    "required": ["title"],
    "additionalProperties": False,
    "x-order": ["title", "date", "time", "location"],
}

_FIELDS = ("title", "date", "time", "location")
_NAMES = {
    "title": ("title", "name", "event", "summary", "subject", "what"),
    "date": ("date", "day", "start_date", "event date", "on"),
    "time": ("time", "start_time", "start", "begins at", "at"),
    "location": ("location", "place", "venue", "where", "address"),
}
_TITLES = ("Event", "CalendarEvent", "Appointment", "CalendarEntry", "Meeting", "EventInfo")
_LIST_NAMES = ("events", "appointments", "entries", "items")
_CANONICAL_SCHEMA_SHARE = 0.65
_CANONICAL_INSTRUCTIONS_SHARE, _IN_PROMPT_SHARE, _ENGLISH_SHARE = 0.3, 0.1, 0.5
# The days that a small model learns within a million tokens are more frequent than in other messages.
_PLAIN_DATE_SHARES = {"today": 0.12, "tonight": 0.04, "tomorrow": 0.2, "day_after_tomorrow": 0.08, "weekday": 0.26}
_PLAIN_DATE_SHARES |= {"iso": 0.08, "day_month": 0.16, "day_month_year": 0.03, "numeric_year": 0.03}
_PLAIN_INSTRUCTIONS_SHARE, _OPEN_TITLE_SHARE, _MOST_PLAIN_MESSAGES = 0.7, 0.6, 3
_NOTHING_SHARE = 0.25
# Of messages with an event, the share whose schema also allows the answer that there is no event.
_MAY_BE_NOTHING_SHARE = 0.3
_MOST_FURTHER_MESSAGES = 3
# People ask for the events of messages that state most fields. With fewer, a trained model leaves out what it cannot read.
_STATED_IN_TRAINING = StatedShares(date=0.92, time=0.88, place=0.8)
_SHAPES = ("null", "null", "null", "property", "list", "list")


def event_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a prompt with one message or two and the events in it; in training up to four such prompts under one schema."""
    frames = frames_of(language, split)
    today = draw_reference_day(rng)
    has_event = rng.random() >= _NOTHING_SHARE
    shape = rng.choice(_SHAPES) if not has_event or rng.random() < _MAY_BE_NOTHING_SHARE else "event"
    stated = _STATED_IN_TRAINING if split == "train" else STATED
    messages = _draw_messages(rng, frames, today, shape, has_event, stated)
    shaped = _draw_shaped(rng, shape)
    text = rng.choice(("\n", "\n\n", " ")).join(message.text for message in messages)
    instructions, prompt = _draw_instructions(rng, frames, split, today, shape), text
    if rng.random() < _IN_PROMPT_SHARE:
        instructions, prompt = "", f"{instructions}{rng.choice((chr(10), chr(10) * 2, ' '))}{text}"
    turns: list[Turn] = [Instructions(text=instructions), *_message_and_answer(prompt, shaped, messages)]
    for _ in range(rng.randint(0, _MOST_FURTHER_MESSAGES) if split == "train" else 0):
        has_event = shape == "event" or rng.random() >= _NOTHING_SHARE
        messages = _draw_messages(rng, frames, today, shape, has_event, stated)
        turns += _message_and_answer("\n".join(message.text for message in messages), shaped, messages)
    return tuple(turns)


def _draw_messages(
    rng: random.Random, frames: LanguageFrames, today: datetime.date, shape: str, has_event: bool, stated: StatedShares
) -> list[Message]:
    """One message; two if the schema has a list, in some cases."""
    if not has_event:
        return [draw_other_message(rng, frames, today)]
    messages = [draw_message(rng, frames, today, stated=stated)]
    if shape == "list" and rng.random() < 0.4:
        messages.append(draw_message(rng, frames, today, stated=stated))
    return messages


def _message_and_answer(prompt: str, shaped: Shaped, messages: Sequence[Message]) -> tuple[UserTurn, AssistantTurn]:
    answer = shaped.answer([message.event for message in messages if message.event])
    return UserTurn(text=prompt, response_format=shaped.schema), AssistantTurn(text=compact_json(answer))


def plain_event_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return one to three messages with their events under `EVENT_SCHEMA`, mostly with the canonical instructions.

    Small models train on it: several messages to one week give more answers for each token. The frames are those of
    events.txt without its continuations: with all of them, micro's million tokens give it fewer right fields.
    """
    frames, today = frames_of(language, split), draw_reference_day(rng)
    if rng.random() < _PLAIN_INSTRUCTIONS_SHARE:
        instructions = event_instructions(today)
    else:
        parts = [fill(rng, rng.choice(frames_of("en", split).instructions["event"])), reference_week(today)]
        instructions = " ".join(reversed(parts) if rng.random() < 0.25 else parts)
    turns: list[Turn] = [Instructions(text=instructions)]
    for _ in range(rng.randint(1, _MOST_PLAIN_MESSAGES)):
        message = draw_message(
            rng,
            frames,
            today,
            open_titles=_OPEN_TITLE_SHARE,
            date_shares=_PLAIN_DATE_SHARES,
            events=frames.plain_events,
        )
        turns.append(UserTurn(text=message.text, response_format=EVENT_SCHEMA))
        turns.append(AssistantTurn(text=compact_json(message.event)))
    return tuple(turns)


def _draw_instructions(rng: random.Random, frames: LanguageFrames, split: Split, today: datetime.date, shape: str) -> str:
    """The task and the reference day, in English or the language of the message."""
    if rng.random() < _CANONICAL_INSTRUCTIONS_SHARE:
        writers = (event_instructions, event_instructions_today_only, reference_week)
        return rng.choices(writers, (0.75, 0.1, 0.15))[0](today)
    if rng.random() < _ENGLISH_SHARE:
        frames = frames_of("en", split)
    section = {"event": "event", "list": "events_list"}.get(shape, "event_or_null")
    section = "event" if rng.random() < 0.25 else section
    task = fill(rng, rng.choice(frames.instructions[section]))
    parts = [task, draw_reference(rng, frames, today)]
    if rng.random() < 0.25:
        parts.reverse()
    return rng.choice((" ", " ", "\n")).join(parts)


@dataclass(frozen=True)
class Shaped:
    """A schema of events, and the answer under it."""

    schema: JsonSchema
    answer: Callable[[Sequence[dict[str, str]]], Any]


def _draw_shaped(rng: random.Random, shape: str) -> Shaped:
    """A schema of a shape: an event, an event or null, a property that may be absent, or a list."""
    properties = _draw_properties(rng)
    title = "Event" if properties is None else rng.choice(_TITLES)
    schema = EVENT_SCHEMA if properties is None else object_schema(title, list(properties.values()))

    def each(events: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        if properties is None:
            return list(events)
        drafts = list(properties.values())
        named = ({p.name: event[field] for field, p in properties.items() if field in event} for event in events)
        return [answer_object(drafts, values) for values in named]

    def one(events: Sequence[dict[str, str]]) -> dict[str, Any] | None:
        return each(events)[0] if events else None

    match shape:
        case "null":
            return Shaped(nullable(schema), one)
        case "property":
            name = styled(rng.choice(("event", "appointment", "result")), "snake")
            wrapped = [PropertyDraft(name, schema, rng.choice(("null", "omitted")))]
            outer = object_schema(rng.choice(("Answer", "Result", "Extraction")), wrapped)
            return Shaped(outer, lambda events: answer_object(wrapped, {name: one(events)} if events else {}))
        case "list":
            if rng.random() < 0.4:
                return Shaped({"type": "array", "items": schema}, each)
            name = rng.choice(_LIST_NAMES)
            listed = [PropertyDraft(name, {"type": "array", "items": schema})]
            outer = object_schema(rng.choice(("Events", "Calendar", "Result")), listed)
            return Shaped(outer, lambda events: {name: each(events)})
    return Shaped(schema, one)


def _draw_properties(rng: random.Random) -> dict[str, PropertyDraft] | None:
    """Properties by field with other names, in another order, or fewer of them; None for the canonical schema."""
    if rng.random() < _CANONICAL_SCHEMA_SHARE:
        return None
    style = rng.choice(STYLES)
    absence = rng.choice(("omitted", "omitted", "null"))
    fields = list(_FIELDS)
    if rng.random() < 0.3:
        rng.shuffle(fields)
    if rng.random() < 0.3:
        fields.remove(rng.choice(("date", "time", "location")))
    renamed = rng.random() < 0.6
    properties = {}
    for field in fields:
        name = styled(rng.choice(_NAMES[field]) if renamed else field, style)
        schema = dict(EVENT_SCHEMA["properties"][field])
        if rng.random() < 0.1:
            schema["description"] = _DESCRIPTIONS[field]
        properties[field] = PropertyDraft(name, schema, "never" if field == "title" else absence)
    return properties


_DESCRIPTIONS = {
    "title": "What the event is called",
    "date": "Day of the event",
    "time": "When it starts",
    "location": "Where it takes place",
}
