"""Lookup: a list of keys and values in random order, a key, and its value. It trains the reading of a reference week."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import fill
from openafm.data.synthetic.text_files.frames import LanguageFrames, frames_of
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_KEYS = (*4 * ("weekday",), "person", "word", "code", "city", "product", "n", "room", "name", "topic")
_VALUES = (*4 * ("date",), "word", "code", "price", "n", "person", "phone", "time", "city")
_PAIRS = ("{}: {}", "{} = {}", "{} {}", "{} - {}", "{} is {}", "{}, {}", "| {} | {} |", "{} → {}")
_ENDS = ("\n", "\n", ", ", "; ")
_SCHEMA_SHARE, _JSON_SHARE, _IN_PROMPT_SHARE, _OTHER_FORM_SHARE = 0.3, 0.12, 0.4, 0.6
_MAX_QUESTIONS = 6


def lookup_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a list, questions for some of its keys, and the answers.

    A weekday may be asked for in another form than the listed one ("Fri": "viernes"). Several questions to one list give
    more practice for each token of training.
    """
    frames, today = frames_of(language, split), draw_reference_day(rng)
    key_kind = rng.choice(_KEYS)
    value_kind = rng.choice([kind for kind in _VALUES if kind != key_kind])
    english = frames_of("en", split)
    keys, asked = _keys(rng, frames, english, key_kind, today)
    values = _distinct(rng, frames, value_kind, len(keys), today)
    keys = keys[: len(values)]
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


def _keys(
    rng: random.Random, frames: LanguageFrames, english: LanguageFrames, kind: str, today: datetime.date
) -> tuple[list[str], list[str]]:
    """Return the keys in the list and, for each, the text that asks for it."""
    if kind != "weekday":
        keys = _distinct(rng, frames, kind, rng.randint(3, 12), today)
        return keys, keys
    forms = [calendar.lists[form] for calendar in (frames.calendar, english.calendar) for form in ("weekday", "wd")]
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
