"""Events from text, extraction, labels and single tool calls: the hand-written cases of `evaluation.fresh`, and validity.

Every answer under a schema is validated: `valid` is the share of answers that satisfy it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from openafm.evaluation.features.base import FeatureConfig
from openafm.evaluation.fresh.cases import Case, event_cases, form_cases, label_cases, tool_cases
from openafm.evaluation.fresh.scores import constant_answer, grade_answer, regex_answer
from openafm.evaluation.harness.task import Item, Output, Prompt, Verdict
from openafm.framework.errors import FoundationModelsError
from openafm.framework.schema.validation import Validator

SETS: Mapping[str, Callable[[], list[Case]]] = {
    "event": event_cases,
    "extraction": form_cases,
    "tagging": label_cases,
    "tool_call": tool_cases,
}

_ABOUT = {
    "event": "Events of hand-written messages",
    "extraction": "Forms filled in from texts",
    "tagging": "One label out of several, with the right one first and last",
    "tool_call": "The tool call for a request, or none",
}


@dataclass(frozen=True, kw_only=True)
class WrittenCasesConfig(FeatureConfig):
    """Hand-written cases in sixteen languages. The score of an item is its share of right fields or calls."""

    METRIC: ClassVar[str] = "score"

    set: str = "event"
    max_tokens: int = 192

    def __post_init__(self) -> None:
        self.require(self.set in SETS, f"unknown set '{self.set}'; known: {', '.join(SETS)}")

    @property
    def about(self) -> str:
        return f"{_ABOUT[self.set]}, in sixteen languages."

    def items(self, data: Path) -> Iterator[Item]:
        for number, case in enumerate(_cases(self.set)):
            tools = tuple(
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in case.tools
            )
            prompt = Prompt(
                text=case.prompt,
                instructions=case.instructions,
                schema=case.schema,
                tools=tools,
                max_tokens=self.max_tokens,
            )
            yield Item(id=str(number), prompt=prompt, reference=number, language=case.language, group=case.figure)

    def judge(self, item: Item, output: Output) -> Verdict:
        case = _cases(self.set)[item.reference]
        answer: Any
        scores: dict[str, float] = {}
        if case.tools:
            answer = [[call["name"], call["arguments"]] for call in output.calls]
        else:
            answer = read_json(output.text)
            scores["valid"] = float(is_valid(case.schema or {}, output.text))
        scores["score"] = grade_answer(case, answer)[case.figure]
        return Verdict(
            scores=scores,
            extraction=json.dumps(answer, ensure_ascii=False),
            expected=json.dumps(case.expected, ensure_ascii=False),
        )

    def constant(self, item: Item) -> Output:
        return _output(_cases(self.set)[item.reference], constant_answer)

    def pattern(self, item: Item) -> Output:
        return _output(_cases(self.set)[item.reference], regex_answer)


def _output(case: Case, answer: Callable[[Case], Any]) -> Output:
    value = answer(case)
    if case.tools:
        return Output(calls=tuple({"name": name, "arguments": arguments} for name, arguments in value))
    return Output(text=json.dumps(value, ensure_ascii=False))


def read_json(text: str) -> Any:
    """Return the JSON value of a text; an empty object if it has none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {}


def is_valid(schema: Mapping[str, Any], text: str) -> bool:
    """Return whether a text is JSON that satisfies a schema."""
    try:
        value = json.loads(text)
        return Validator(dict(schema)).validation().problem(value) is None
    except (ValueError, RecursionError, FoundationModelsError):
        return False


@cache
def _cases(name: str) -> list[Case]:
    return SETS[name]()
