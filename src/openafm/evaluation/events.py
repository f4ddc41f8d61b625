"""Held-out event extraction: exact match per field of any extractor, a model or a baseline (report 8).

The report evaluates calendar events from images of flyers; this evaluates them from messages of the built-in corpus. Its
held-out split shares no sentence frames, names, places or titles with the training split.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from openafm.data.synthetic import EVENT_SCHEMA, SyntheticConfig, generate
from openafm.evaluation.event_baselines import constant_event, regex_event
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel

FIELDS = ("title", "date", "time", "location")
MAX_TOKENS = 80
"""Token limit of an answer; the longest reference has about 60 tokens of the micro tokenizer."""


@dataclass(frozen=True, kw_only=True)
class EventExample:
    """A message, the instructions with the reference day, and the event of the message."""

    instructions: str
    message: str
    schema: dict[str, Any]
    reference_day: datetime.date
    language: str
    gold: dict[str, Any]


Extractor = Callable[[EventExample], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class EventScores:
    """Shares of examples, from 0 to 1. `whole_event` is the share with all four fields correct."""

    num_examples: int
    whole_event: float
    fields: dict[str, float]
    languages: dict[str, float]

    @property
    def exact_match(self) -> float:
        """Return the exact match averaged over the four fields."""
        return sum(self.fields.values()) / len(self.fields)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def held_out_events(count: int, seed: int = 0, languages: dict[str, float] | None = None) -> list[EventExample]:
    """Return the first `count` held-out examples under `EVENT_SCHEMA` whose instructions state the day as an ISO date."""
    config = SyntheticConfig(seed=seed, split="held_out", tasks={"event": 1.0})
    if languages is not None:
        config = replace(config, languages=languages)
    examples = (_event_example(conversation) for conversation in generate(config, sys.maxsize))
    return list(itertools.islice((example for example in examples if example is not None), count))


def score(
    extract: Extractor, examples: Sequence[EventExample], on_each: Callable[[int], None] = lambda _: None
) -> EventScores:
    """Return the scores of an extractor. `on_each` is called with the number of examples done."""
    right = dict.fromkeys(FIELDS, 0)
    whole: dict[str, list[bool]] = {}
    for number, example in enumerate(examples, start=1):
        answer = extract(example)
        matches = [answer.get(field) == example.gold.get(field) for field in FIELDS]
        for field, match in zip(FIELDS, matches, strict=True):
            right[field] += match
        whole.setdefault(example.language, []).append(all(matches))
        on_each(number)
    return EventScores(
        num_examples=len(examples),
        whole_event=sum(map(sum, whole.values())) / len(examples),
        fields={field: count / len(examples) for field, count in right.items()},
        languages={language: sum(matches) / len(matches) for language, matches in sorted(whole.items())},
    )


def model_extractor(model: SystemLanguageModel) -> Extractor:
    """Return an extractor by guided generation, greedy, with a new session for each message.

    An answer that does not end within `MAX_TOKENS` counts as empty.
    """
    from openafm.framework.errors import DecodingFailureError
    from openafm.framework.options import GenerationOptions, SamplingMode
    from openafm.framework.session.session import LanguageModelSession

    options = GenerationOptions(sampling=SamplingMode.greedy(), maximum_response_tokens=MAX_TOKENS)

    def extract(example: EventExample) -> dict[str, Any]:
        session = LanguageModelSession(example.instructions, model)
        try:
            content = session.respond_blocking(example.message, json_schema=example.schema, options=options)
        except DecodingFailureError:
            return {}
        event = json.loads(content.to_json())
        assert isinstance(event, dict)
        return event

    return extract


def regex_extractor(example: EventExample) -> dict[str, Any]:
    """Baseline: regular expressions."""
    return regex_event(example.message, example.reference_day)


def constant_extractor(_: EventExample) -> dict[str, Any]:
    """Baseline: the constant answer."""
    return constant_event()


def _event_example(conversation: Conversation) -> EventExample | None:
    """The example of a conversation; None for another schema, or if the reference day is not an ISO date."""
    instructions, user, assistant = conversation.turns
    assert isinstance(instructions, Instructions)
    assert isinstance(user, UserTurn)
    assert isinstance(assistant, AssistantTurn)
    day = re.search(r"Today is \w{3} (\d{4}-\d{2}-\d{2})", instructions.text)
    if user.response_format != EVENT_SCHEMA or day is None:
        return None
    return EventExample(
        instructions=instructions.text,
        message=user.text,
        schema=user.response_format,
        reference_day=datetime.date.fromisoformat(day[1]),
        language=conversation.language,
        gold=json.loads(assistant.text),
    )
