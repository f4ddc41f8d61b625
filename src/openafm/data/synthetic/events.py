"""Event extraction: a message in, `{"title":...,"date":...,"time":...,"location":...}` out.

Title and location are spans of the message, letter by letter; date and time are normalised. Relative days are resolved
against the reference day that the instructions state.
"""

from __future__ import annotations

import datetime
import random

from openafm.data.synthetic.lexicons import EventWords, Lexicon
from openafm.data.synthetic.moments import Phrase, draw_date, draw_reference_day, draw_time
from openafm.data.synthetic.slots import Slots, bare, draw_proper, marked, pieces
from openafm.tokenizer.conversation import AssistantTurn, Instructions, JsonSchema, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

EVENT_SCHEMA: JsonSchema = {
    "title": "Event",
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "date": {"type": "string", "format": "date"},
        "time": {"type": "string", "pattern": "^(?:[01][0-9]|2[0-3]):[0-5][0-9]$"},
        "location": {"type": "string"},
    },
    "required": ["title"],
    "additionalProperties": False,
    "x-order": ["title", "date", "time", "location"],
}

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Canonical, today only, and the week only, which leaves the task to the response format.
_INSTRUCTIONS_SHARES = (0.6, 0.1, 0.3)
# In training some titles mean nothing: what cannot be learnt by heart has to be read off the message.
_INVENTED_TITLE_WEIGHT = 7
_DATE_SHARE, _TIME_SHARE, _PLACE_SHARE = 0.85, 0.75, 0.65
_OPENER_SHARE, _CLOSER_SHARE = 0.4, 0.3
_ALL_LOWER_CASE_SHARE = 0.06
# Scripts with capitals, where a message typed without them still reads well.
_MAY_LACK_CAPITALS = frozenset({"en", "da", "nl", "fr", "it", "nb", "pt", "es", "sv", "vi"})
# Where the title and the place stand while a message is put together.
_TITLE, _PLACE = "\0", "\1"
_DATE_SLOTS = frozenset({"when", "when_bare", "date", "date_bare"})
_TIME_SLOTS = frozenset({"when", "when_bare", "time", "time_bare"})
_PLACE_SLOTS = frozenset({"place", "place_bare"})


def reference_week(day: datetime.date) -> str:
    """Instructions that state the day and list the coming week: what "on Friday" is can be looked up, not computed."""
    week = [day + datetime.timedelta(days=offset) for offset in range(1, 8)]
    listed = ", ".join(f"{_WEEKDAYS[d.weekday()]} {d:%m-%d}" if d.year == day.year else _dated(d) for d in week)
    return f"Today is {_dated(day)}; {listed}."


def event_instructions(day: datetime.date) -> str:
    """The canonical instructions of event extraction on `day`."""
    return f"Extract the event. {reference_week(day)}"


def event_instructions_today_only(day: datetime.date) -> str:
    """Instructions that state only the reference day."""
    return f"Extract the event. Today is {_dated(day)}."


def event_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """One message with its event."""
    today = draw_reference_day(rng)
    write = rng.choices((event_instructions, event_instructions_today_only, reference_week), _INSTRUCTIONS_SHARES)[0]
    message, event = _draw_message(rng, words, today)
    return (
        Instructions(text=write(today)),
        UserTurn(text=message, response_format=EVENT_SCHEMA),
        AssistantTurn(text=compact_json(event)),
    )


def _dated(day: datetime.date) -> str:
    return f"{_WEEKDAYS[day.weekday()]} {day.isoformat()}"


def _draw_message(rng: random.Random, words: Lexicon, today: datetime.date) -> tuple[str, dict[str, str]]:
    """A message and the event in it."""
    family = pieces(rng.choice(words.event.families))
    needed = frozenset[str]().union(*(piece.slots for piece in family if not piece.optional))
    date = draw_date(rng, words.calendar, today) if rng.random() < _DATE_SHARE or needed & {"date", "date_bare"} else None
    time = draw_time(rng, words.language) if rng.random() < _TIME_SHARE or needed & {"time", "time_bare"} else None
    if not date and not time and needed & _DATE_SLOTS:
        date = draw_date(rng, words.calendar, today)
    slots = Slots(rng, words)
    _set_title(slots, words.event)
    _set_when(slots, date, time)
    if rng.random() < _PLACE_SHARE or needed & _PLACE_SLOTS:
        _set_place(slots)

    absent = (_DATE_SLOTS | _TIME_SLOTS | _PLACE_SLOTS) - slots.keys()
    kept = [piece for piece in family if not piece.slots & absent]
    sentences = [slots.fill("".join(piece.text for piece in kept))]
    if rng.random() < _OPENER_SHARE:
        sentences.insert(0, slots.choose(words.event.openers))
    if rng.random() < _CLOSER_SHARE:
        sentences.append(slots.choose(words.event.closers))
    message = words.space.join(sentences)
    if words.language in _MAY_LACK_CAPITALS and rng.random() < _ALL_LOWER_CASE_SHARE:
        message = message.lower()

    said = frozenset[str]().union(*(piece.slots for piece in kept))
    event = {"title": message.split(_TITLE)[1].replace(_PLACE, "")}
    if date and said & _DATE_SLOTS:
        event["date"] = date.value
    if time and said & _TIME_SLOTS:
        event["time"] = time.value
    if said & _PLACE_SLOTS:
        event["location"] = message.split(_PLACE)[1].replace(_TITLE, "")
    return message.replace(_TITLE, "").replace(_PLACE, ""), event


def _set_title(slots: Slots, words: EventWords) -> None:
    """Draw a title and set its slots: bare, with its article, with its article in the accusative."""
    rng = slots.rng
    invented = _INVENTED_TITLE_WEIGHT if slots.words.split == "train" else 0
    match rng.choices(("errand", "social", "meeting", "named", "invented"), (3, 3, 4, 1, invented))[0]:
        case "errand":
            text = rng.choice(words.errands)
        case "social":
            text = rng.choice(words.social)
            if rng.random() < 0.7:
                text = rng.choice(words.with_person).replace("{activity}", text)
        case "meeting":
            text, draw = rng.choice(words.meetings), rng.random()
            if draw < 0.4:
                text = rng.choice(words.with_topic).replace("{activity}", text).replace("{topic}", rng.choice(words.topics))
            elif draw < 0.8:
                text = rng.choice(words.with_person).replace("{activity}", text)
        case "named":
            text = rng.choice(words.named)
        case _:
            text = _invented_title(slots)
    # The people in a title are its own: `{person}` of the family is someone else.
    text = Slots(rng, slots.words).fill(text)
    articles, bar, title = text.rpartition("|")
    if not bar:
        articles = words.article
    nominative, _, accusative = articles.partition("/")
    if accusative:
        nominative += " "
    slots["title"] = _TITLE + title + _TITLE
    slots["the_title"] = nominative + slots["title"]
    slots["acc_title"] = (accusative or nominative) + slots["title"]


def _invented_title(slots: Slots) -> str:
    """One to three invented names and topics in a row."""
    rng, words = slots.rng, slots.words
    parts = [
        draw_proper(rng, words) if rng.random() < 0.6 else rng.choice(words.event.topics) for _ in range(rng.randint(1, 3))
    ]
    title = words.space.join(parts)
    return title.lower() if rng.random() < 0.4 else title


def _set_when(slots: Slots, date: Phrase | None, time: Phrase | None) -> None:
    calendar, rng = slots.words.calendar, slots.rng
    if date:
        slots["date"], slots["date_bare"] = date.text, date.bare
    if time:
        slots["time"], slots["time_bare"] = time.text, time.bare
    if date and time:
        when, bare_when = calendar.when_both, calendar.bare_both
    elif date:
        when, bare_when = calendar.when_date, calendar.bare_date
    elif time:
        when, bare_when = calendar.when_time, calendar.bare_time
    else:
        return
    slots["when"], slots["when_bare"] = rng.choice(when).format_map(slots), rng.choice(bare_when).format_map(slots)


def _set_place(slots: Slots) -> None:
    text = Slots(slots.rng, slots.words).choose(slots.words.places)
    slots["place"], slots["place_bare"] = marked(text, _PLACE), _PLACE + bare(text) + _PLACE
