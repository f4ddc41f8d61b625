"""Scores of a model on the fresh sets: greedy, each case in a session of its own, and of baselines without a model."""

from __future__ import annotations

import datetime
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from openafm.evaluation.event_baselines import constant_event, regex_event
from openafm.evaluation.fresh.cases import Case
from openafm.evaluation.guesses import guess

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel

MOST_TOKENS = 200
FIELDS = ("title", "date", "time", "location")
Answer = Callable[[Case], Any]


@dataclass(frozen=True, kw_only=True)
class FigureScore:
    """The mean grade of a figure's cases, from 0 to 1, overall and by language."""

    score: float
    num_cases: int
    languages: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_cases(
    cases: Sequence[Case], answer: Answer, on_each: Callable[[int], None] = lambda _: None
) -> dict[str, FigureScore]:
    """Grade an answerer on cases: one score for each figure. `on_each` is called with the number of cases done."""
    grades: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for done, case in enumerate(cases, start=1):
        for figure, grade in grade_answer(case, answer(case)).items():
            grades[figure].append((case.language, grade))
        on_each(done)
    return {figure: _score(found) for figure, found in sorted(grades.items())}


def grade_answer(case: Case, answer: Any) -> dict[str, float]:
    """The grades of one answer, by figure. `answer` is a JSON value, a list of [name, arguments] for tools, or None."""
    if case.tools:
        return _grade_calls(case, answer)
    if case.figure in ("event", "event_or_none", "event_iso"):
        return _grade_event(case, answer if isinstance(answer, dict) else {})
    if case.figure == "nothing":
        return {"nothing": float(answer is None)}
    given = answer if isinstance(answer, dict) else {}
    if case.figure == "form":
        return {"form": _share_of_fields(given, case.expected)}
    return {case.figure: float(given.get("label") == case.expected)}


def model_answer(model: SystemLanguageModel) -> Answer:
    """Ask a model of this machine. An answer that was cut off counts as an empty object."""
    from openafm.evaluation.tool_turns import next_turn
    from openafm.framework.errors import DecodingFailureError
    from openafm.framework.options import GenerationOptions, SamplingMode
    from openafm.framework.session.session import LanguageModelSession
    from openafm.tokenizer.conversation import Instructions, UserTurn

    options = GenerationOptions(sampling=SamplingMode.greedy(), maximum_response_tokens=MOST_TOKENS)

    def answer(case: Case) -> Any:
        if case.tools:
            turns = (Instructions(text=case.instructions, tools=case.tools), UserTurn(text=case.prompt))
            turn = next_turn(model.load(), turns, case.tools, MOST_TOKENS)
            return None if turn is None else [[call.name, call.arguments] for call in turn.tool_calls]
        session = LanguageModelSession(case.instructions, model)
        try:
            content = session.respond_blocking(case.prompt, json_schema=case.schema, options=options)
        except DecodingFailureError:
            return {}
        return json.loads(content.to_json())

    return answer


def constant_answer(case: Case) -> Any:
    """The constant baseline: a constant event, the first label, the first tool, empty forms."""
    if case.tools:
        return [[case.tools[0].name, {}]]
    if case.figure.startswith(("event", "nothing")):
        return constant_event()
    return {"label": case.schema["properties"]["label"]["enum"][0]} if case.schema and "label" in case.figure else {}


def regex_answer(case: Case) -> Any:
    """The pattern baseline: events by English regular expressions, forms and tools by the words after their names."""
    if case.tools:
        tool = case.tools[0]
        return [[tool.name, guess(tool.parameters, case.prompt)]]
    if case.figure.startswith(("event", "nothing")):
        today = re.search(r"\d{4}-\d{2}-\d{2}", case.instructions)
        return regex_event(case.prompt, datetime.date.fromisoformat(today[0])) if today else {}
    return guess(case.schema or {}, case.prompt) if case.figure == "form" else constant_answer(case)


def _grade_event(case: Case, answer: dict[str, Any]) -> dict[str, float]:
    """The share of right fields; under the plain schema also whole events, and dates that were given as weekdays."""
    right = {name: any(_same(answer.get(name), one) for one in case.expected[name]) for name in FIELDS}
    grades = {case.figure: sum(right.values()) / len(right)}
    if case.figure == "event":
        grades["event_whole"] = float(all(right.values()))
        if case.expected["weekday"]:
            grades["weekday"] = float(right["date"])
    return grades


def _grade_calls(case: Case, answer: Any) -> dict[str, float]:
    calls = [] if answer is None else list(answer)
    if not case.expected:
        return {case.figure: float(answer is not None and not calls)}
    right_tools = sorted(name for name, _ in calls) == sorted(name for name, _ in case.expected)
    if case.figure == "natural_tool":
        slots, given = case.expected[0][1], calls[0][1] if calls else {}
        return {
            "natural_tool": float(right_tools),
            "natural_slots": _share_of_fields(given, slots) if slots else float(not given),
        }
    exact = right_tools and all(any(_same_call(call, expected) for call in calls) for expected in case.expected)
    return {case.figure: float(exact), f"{case.figure}_name": float(right_tools)}


def _same_call(call: Any, expected: Any) -> bool:
    """The same tool with the same arguments, none added."""
    return bool(call[0] == expected[0] and call[1].keys() == expected[1].keys() and _same(call[1], expected[1]))


def _share_of_fields(given: dict[str, Any], expected: dict[str, Any]) -> float:
    return sum(_same(given.get(name), value) for name, value in expected.items()) / len(expected)


def _same(value: Any, expected: Any) -> bool:
    """Compare without case, surrounding punctuation and spaces inside arithmetic; 2 equals 2.0, True does not equal 1."""
    if isinstance(expected, list):
        return isinstance(value, list) and len(value) == len(expected) and all(map(_same, value, expected))
    if isinstance(expected, dict):
        return isinstance(value, dict) and all(_same(value.get(name), item) for name, item in expected.items())
    if isinstance(expected, str) and isinstance(value, str):
        return _plain(value) == _plain(expected)
    return bool(value == expected and isinstance(value, bool) == isinstance(expected, bool))


def _plain(text: str) -> str:
    stripped = text.casefold().strip(" .,;:!?'\"。！？").replace("’", "'")
    return stripped.replace(" ", "") if set(stripped) <= set("0123456789+-*/(). ") else stripped


def _score(found: list[tuple[str, float]]) -> FigureScore:
    by_language: defaultdict[str, list[float]] = defaultdict(list)
    for language, grade in found:
        by_language[language].append(grade)
    return FigureScore(
        score=sum(grade for _, grade in found) / len(found),
        num_cases=len(found),
        languages={language: sum(grades) / len(grades) for language, grades in sorted(by_language.items())},
    )
