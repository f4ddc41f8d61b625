"""Lookup: a list of keys and values in random order, a key, and its value. It trains the reading of a reference week."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence

from openafm.data.synthetic.calendar import draw_reference_day
from openafm.data.synthetic.frames import LanguageFrames, frames_of
from openafm.data.synthetic.languages import Split
from openafm.data.synthetic.reference import fill
from openafm.tokenizer.conversation import AssistantTurn, Instructions, Turn, UserTurn
from openafm.tokenizer.schema_text import compact_json

_KEYS = ("weekday", "weekday", "person", "word", "code", "city", "product", "n", "room", "name", "topic")
_VALUES = ("date", "date", "word", "code", "price", "n", "person", "phone", "time", "city")
_PAIRS = ("{}: {}", "{} = {}", "{} {}", "{} - {}", "{} is {}", "{}, {}", "| {} | {} |", "{} → {}")
_ENDS = ("\n", "\n", ", ", "; ")
_SCHEMA_SHARE, _JSON_SHARE, _IN_PROMPT_SHARE = 0.3, 0.12, 0.4


def lookup_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a list, a question for one of its keys, and the answer."""
    frames, today = frames_of(language, split), draw_reference_day(rng)
    key_kind = rng.choice(_KEYS)
    value_kind = rng.choice([kind for kind in _VALUES if kind != key_kind])
    count = rng.randint(3, 7 if key_kind == "weekday" else 12)
    keys = _distinct(rng, frames, key_kind, count, today)
    values = _distinct(rng, frames, value_kind, len(keys), today)
    keys = keys[: len(values)]
    asked = rng.randrange(len(keys))
    listed = _listed(rng, keys, values)
    english = frames_of("en", split)
    wording = english if rng.random() < 0.5 else frames
    question = fill(rng, rng.choice(wording.instructions["lookup_question"]), key=keys[asked])
    task = fill(rng, rng.choice(wording.instructions["lookup"]))
    instructions, prompt = f"{task}\n{listed}", question
    if rng.random() < _IN_PROMPT_SHARE:
        instructions, prompt = task, f"{listed}\n{question}"
    if rng.random() >= _SCHEMA_SHARE:
        return Instructions(text=instructions), UserTurn(text=prompt), AssistantTurn(text=values[asked])
    name = rng.choice(("value", "answer", "result"))
    schema = {
        "title": name.capitalize(),
        "type": "object",
        "properties": {name: {"type": "string"}},
        "required": [name],
        "additionalProperties": False,
        "x-order": [name],
    }
    answer = AssistantTurn(text=compact_json({name: values[asked]}))
    return Instructions(text=instructions), UserTurn(text=prompt, response_format=schema), answer


def _distinct(rng: random.Random, frames: LanguageFrames, kind: str, count: int, today: datetime.date) -> list[str]:
    """Up to `count` different texts of a kind."""
    if kind == "weekday":
        names = list(frames.calendar.lists[rng.choice(("weekday", "weekday", "wd"))])
        rng.shuffle(names)
        return names[:count]
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
