"""Lookup: a list of keys and values in random order, a key, and its value. It trains the reading of a reference week.

In the task `reorder` the answer repeats items of the list in the order in which the prompt names their keys. Each value then
follows its own key, so that a model learns to find values in a list within a few hundred steps; from single values alone the
shipped model does not (docs/benchmarks.md).
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import fill, reference_week
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_KEYS = (*4 * ("weekday",), "person", "word", "code", "city", "product", "n", "room", "name", "topic")
_VALUES = (*4 * ("date",), "word", "code", "price", "n", "person", "phone", "time", "city")
_PAIRS = ("{}: {}", "{} = {}", "{} {}", "{} - {}", "{} is {}", "{}, {}", "| {} | {} |", "{} → {}")
_PLAIN_PAIRS = ("{} {}", "{}: {}", "{} = {}")
_ENDS = ("\n", "\n", ", ", "; ")
_SCHEMA_SHARE, _JSON_SHARE, _IN_PROMPT_SHARE, _OTHER_FORM_SHARE = 0.3, 0.12, 0.4, 0.6
_MAX_QUESTIONS = 6
_WEEK_SHARE, _NUM_ORDERS = 0.65, 2


def lookup_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a list, questions for some of its keys, and the answers.

    A weekday may be asked for in another form than the listed one ("Fri": "viernes"). Several questions to one list give
    more practice for each token of training.
    """
    frames, english, today = frames_of(language, split), frames_of("en", split), draw_reference_day(rng)
    keys, asked, values = _items(rng, frames, english, today)
    questions = rng.sample(range(len(keys)), rng.randint(1, min(_MAX_QUESTIONS, len(keys))))
    listed = _listed(rng, keys, values)
    wording = english if rng.random() < 0.5 else frames
    phrase = rng.choice(wording.instructions["lookup_question"])
    prompts = [fill(rng, phrase, key=asked[index]) for index in questions]
    task = fill(rng, rng.choice(wording.instructions["lookup"]))
    instructions = f"{task}\n{listed}"
    if rng.random() < _IN_PROMPT_SHARE:
        instructions, prompts[0] = task, f"{listed}\n{prompts[0]}"
    name = rng.choice(("value", "answer", "result")) if rng.random() < _SCHEMA_SHARE else None
    turns: list[Turn] = [Instructions(text=instructions)]
    for prompt, index in zip(prompts, questions, strict=True):
        turns += _question_and_answer(prompt, values[index], name)
    return tuple(turns)


def reorder_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a list, some of its keys in random orders, and for each order the keys with their values."""
    frames, english, today = frames_of(language, split), frames_of("en", split), draw_reference_day(rng)
    if rng.random() < _WEEK_SHARE:
        listed, asked, values = _week(rng, frames, english, today)
    else:
        keys, asked, values = _items(rng, frames, english, today)
        listed = _listed(rng, keys, values)
    wording = english if rng.random() < 0.5 else frames
    task = fill(rng, rng.choice(wording.instructions["lookup"])) + "\n" if rng.random() < 0.5 else ""
    turns: list[Turn] = [Instructions(text=f"{task}{listed}")]
    pair, end = rng.choice(_PLAIN_PAIRS), rng.choice(_ENDS)
    for _ in range(_NUM_ORDERS):
        order = rng.sample(range(len(values)), rng.randint(min(2, len(values)), min(7, len(values))))
        turns.append(UserTurn(text=end.join(asked[index] for index in order)))
        turns.append(AssistantTurn(text=end.join(pair.format(asked[index], values[index]) for index in order)))
    return tuple(turns)


def _question_and_answer(prompt: str, value: str, property_name: str | None) -> tuple[UserTurn, AssistantTurn]:
    """Return the turns of a question. The answer is an object if its property has a name, else the value alone."""
    if property_name is None:
        return UserTurn(text=prompt), AssistantTurn(text=value)
    schema = {
        "title": property_name.capitalize(),
        "type": "object",
        "properties": {property_name: {"type": "string"}},
        "required": [property_name],
        "additionalProperties": False,
        "x-order": [property_name],
    }
    return UserTurn(text=prompt, response_format=schema), AssistantTurn(text=compact_json({property_name: value}))


def _week(
    rng: random.Random, frames: LanguageFrames, english: LanguageFrames, today: datetime.date
) -> tuple[str, list[str], list[str]]:
    """Return a reference week, texts that ask for its days, and their dates, with the year or as listed."""
    days = [today + datetime.timedelta(offset) for offset in range(1, 8)]
    names = rng.choice(_weekday_forms(frames, english))
    has_year = rng.random() < 0.5
    dates = [day.isoformat() if has_year or day.year != today.year else f"{day:%m-%d}" for day in days]
    return reference_week(today), [names[day.weekday()] for day in days], dates


def _items(
    rng: random.Random, frames: LanguageFrames, english: LanguageFrames, today: datetime.date
) -> tuple[list[str], list[str], list[str]]:
    """Return the keys of a list, for each the text that asks for it, and their values."""
    key_kind = rng.choice(_KEYS)
    value_kind = rng.choice([kind for kind in _VALUES if kind != key_kind])
    keys, asked = _keys(rng, frames, english, key_kind, today)
    values = _distinct(rng, frames, value_kind, len(keys), today)
    return keys[: len(values)], asked[: len(values)], values


def _weekday_forms(frames: LanguageFrames, english: LanguageFrames) -> list[Sequence[str]]:
    """Return the names of the weekdays and their abbreviations, in the language and in English."""
    return [calendar.lists[form] for calendar in (frames.calendar, english.calendar) for form in ("weekday", "wd")]


def _keys(
    rng: random.Random, frames: LanguageFrames, english: LanguageFrames, kind: str, today: datetime.date
) -> tuple[list[str], list[str]]:
    """Return the keys in the list and, for each, the text that asks for it."""
    if kind != "weekday":
        keys = _distinct(rng, frames, kind, rng.randint(3, 12), today)
        return keys, keys
    forms = _weekday_forms(frames, english)
    days = rng.sample(range(7), rng.randint(3, 7))
    listed = rng.choice(forms)
    asked = rng.choice(forms) if rng.random() < _OTHER_FORM_SHARE else listed
    return [listed[day] for day in days], [asked[day] for day in days]


def _distinct(rng: random.Random, frames: LanguageFrames, kind: str, count: int, today: datetime.date) -> list[str]:
    """Up to `count` different texts of a kind."""
    if kind == "date":
        first, style = rng.randrange(300), rng.choice(("iso", "iso", "mm-dd"))
        days = [today + datetime.timedelta(first + offset) for offset in range(count)]
        if rng.random() < 0.3:
            rng.shuffle(days)
        return [day.isoformat() if style == "iso" else f"{day:%m-%d}" for day in days]
    if kind == "time":
        return [f"{minute // 60:02}:{minute % 60:02}" for minute in rng.sample(range(0, 1440, 5), count)]
    drawn: dict[str, None] = {}
    for _ in range(4 * count):
        if len(drawn) < count:
            drawn.setdefault(frames.draw_distractor(rng, kind, today))
    return list(drawn)


def _listed(rng: random.Random, keys: Sequence[str], values: Sequence[str]) -> str:
    if rng.random() < _JSON_SHARE:
        return compact_json(dict(zip(keys, values, strict=True)))
    pair = rng.choice(_PAIRS)
    return rng.choice(_ENDS).join(pair.format(key, value) for key, value in zip(keys, values, strict=True))
