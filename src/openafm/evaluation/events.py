"""Held-out event extraction: exact match per field, for any extractor from a regular expression to a model (report 8).

The report evaluates the feature that makes a calendar event of a flyer; this is its textual sibling on the built-in corpus,
whose held-out split shares neither sentence frames nor names, places and titles with the training split.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.event_baselines import constant_event, regex_event
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, UserTurn

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel

FIELDS = ("title", "date", "time", "location")
MAX_TOKENS = 80  # the longest gold answers of the micro tokenizer take about 60


@dataclass(frozen=True, kw_only=True)
class EventExample:
    """A message, the instructions with the reference day, and the event that stands in it."""

    instructions: str
    message: str
    schema: dict[str, Any]
    reference_day: datetime.date
    language: str
    gold: dict[str, Any]


Extractor = Callable[[EventExample], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class EventScores:
    """Shares of examples, from 0 to 1. `whole_event` counts an event when all four fields are exactly right."""

    num_examples: int
    whole_event: float
    fields: dict[str, float]
    languages: dict[str, float]

    @property
    def exact_match(self) -> float:
        """Exact match per field, averaged over the four fields."""
        return sum(self.fields.values()) / len(self.fields)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def held_out_events(count: int, seed: int = 0, languages: dict[str, float] | None = None) -> list[EventExample]:
    """The first `count` held-out examples, in the corpus's languages or in these by weight."""
    config = SyntheticConfig(seed=seed, split="held_out", tasks={"event": 1.0})
    if languages is not None:
        config = replace(config, languages=languages)
    return [_event_example(conversation) for conversation in generate(config, count)]


def score(
    extract: Extractor, examples: Sequence[EventExample], on_each: Callable[[int], None] = lambda _: None
) -> EventScores:
    """Run an extractor over examples. `on_each` is called with the number done, for progress."""
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
    """Guided generation by a model, greedy, a session of its own for each message.

    An answer that has not ended after `MAX_TOKENS` is no answer: a model that rambles gets nothing right.
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
    """The regular-expression baseline."""
    return regex_event(example.message, example.reference_day)


def constant_extractor(_: EventExample) -> dict[str, Any]:
    """The baseline that never looks."""
    return constant_event()


def _event_example(conversation: Conversation) -> EventExample:
    instructions, user, assistant = conversation.turns
    assert isinstance(instructions, Instructions)
    assert isinstance(user, UserTurn)
    assert isinstance(assistant, AssistantTurn)
    assert user.response_format is not None
    day = re.search(r"\d{4}-\d{2}-\d{2}", instructions.text)
    assert day is not None
    return EventExample(
        instructions=instructions.text,
        message=user.text,
        schema=user.response_format,
        reference_day=datetime.date.fromisoformat(day.group()),
        language=conversation.language,
        gold=json.loads(assistant.text),
    )
