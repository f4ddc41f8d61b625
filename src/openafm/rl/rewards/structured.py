"""Structured answers: JSON under a schema, fields of JSON, tool calls, and the state in which tools left an environment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openafm.rl.rewards.base import TruthError
from openafm.rl.rewards.rules import Rule, RuleConfig
from openafm.rl.trajectories import Sample
from openafm.tokenizer.conversation import AssistantTurn, UserTurn


@dataclass(frozen=True, kw_only=True)
class JsonSchemaConfig(RuleConfig):
    """1 if the answer is JSON that satisfies `truth["schema"]`, or the schema of the prompt's last user turn; else 0."""

    name: str = "json_schema"

    def rule(self) -> Rule:
        return _satisfies_schema


@dataclass(frozen=True, kw_only=True)
class FieldsConfig(RuleConfig):
    """The share of the fields of `truth["value"]` that the answer, JSON, has with equal values.

    Fields are the leaves of objects and arrays; surplus ones count as wrong. Texts are compared without surrounding
    spaces.
    """

    name: str = "fields"

    def rule(self) -> Rule:
        return _equal_fields


@dataclass(frozen=True, kw_only=True)
class ToolCallsConfig(RuleConfig):
    """1 if the tool calls of the sample are those of `truth["calls"]`, else 0.

    An empty list demands an answer without calls. A call is an object with `name` and `arguments`. Numbers are compared by
    value.

    Attributes:
        is_ordered: the calls must come in the same order.
        partial: give the F1 score of the calls instead of 0 or 1.
    """

    name: str = "tool_calls"
    is_ordered: bool = False
    partial: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(not (self.is_ordered and self.partial), "is_ordered and partial exclude each other")

    def rule(self) -> Rule:
        def score(sample: Sample) -> float:
            return _equal_calls(sample, is_ordered=self.is_ordered, partial=self.partial)

        return score


@dataclass(frozen=True, kw_only=True)
class FinalStateConfig(RuleConfig):
    """1 if the environment was left in `truth["state"]` and the answer contains the texts of `truth["contains"]`, else 0.

    The calls that led to the state do not matter.
    """

    name: str = "final_state"

    def rule(self) -> Rule:
        return _has_final_state


def _satisfies_schema(sample: Sample) -> float:
    from openafm.framework.schema.validation import Validator

    turns = sample.prompt.conversation.turns
    formats = [turn.response_format for turn in turns if isinstance(turn, UserTurn)]
    schema = sample.prompt.truth.get("schema", formats[-1] if formats else None)
    if not isinstance(schema, Mapping):
        raise TruthError("the truth needs 'schema', a JSON Schema object, or the prompt a response format")
    validator = Validator(dict(schema))
    is_json, value = _json(sample.text)
    return float(is_json and validator.validation().problem(value) is None)


def _equal_fields(sample: Sample) -> float:
    if "value" not in sample.prompt.truth:
        raise TruthError("the truth needs 'value', the JSON value of a right answer")
    is_json, value = _json(sample.text)
    if not is_json:
        return 0.0
    wanted, found = (dict(_leaves(each, ())) for each in (sample.prompt.truth["value"], value))
    num_equal = sum(path in found and found[path] == leaf for path, leaf in wanted.items())
    return num_equal / len(wanted.keys() | found.keys())


def _equal_calls(sample: Sample, *, is_ordered: bool, partial: bool) -> float:
    wanted = sample.prompt.truth.get("calls")
    if not isinstance(wanted, list) or not all(isinstance(call, Mapping) and "name" in call for call in wanted):
        raise TruthError("the truth needs 'calls', a list of objects with 'name' and 'arguments'")
    golds = [_canonical([call["name"], call.get("arguments", {})]) for call in wanted]
    calls = [call for turn in sample.turns if isinstance(turn, AssistantTurn) for call in turn.tool_calls]
    found = [_canonical([call.name, call.arguments]) for call in calls]
    if is_ordered or not golds or not found:
        return float(golds == found)
    num_equal = (Counter(golds) & Counter(found)).total()
    f1 = 2 * num_equal / (len(golds) + len(found))
    return f1 if partial else float(f1 == 1)


def _has_final_state(sample: Sample) -> float:
    truth = sample.prompt.truth
    texts = truth.get("contains", [])
    if not isinstance(truth.get("state"), Mapping) or not isinstance(texts, list):
        raise TruthError("the truth needs 'state', the final state as an object, and may have 'contains', a list of texts")
    is_equal = _canonical(truth["state"]) == _canonical(dict(sample.state))
    return float(is_equal and all(str(text).casefold() in sample.text.casefold() for text in texts))


def _json(text: str) -> tuple[bool, Any]:
    """Return whether a text is JSON, and its value. NaN and infinities are not JSON."""
    try:
        return True, json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False, None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    elif isinstance(value, list) and value:
        for index, below in enumerate(value):
            yield from _leaves(below, (*path, index))
    else:
        yield path, _canonical(value.strip() if isinstance(value, str) else value)


def _canonical(value: Any) -> str:
    """Return JSON text that is equal for equal values: keys sorted, whole floats as integers."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below) for below in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
