"""JSON answers, tool calls and final states, terms about the form of answers, and instructions as a reward."""

from __future__ import annotations

from typing import Any

import pytest
from reward_samples import sample

from openafm.rl.rewards.instructions import InstructionsConfig
from openafm.rl.rewards.rules import RuleConfig
from openafm.rl.rewards.structured import FieldsConfig, FinalStateConfig, JsonSchemaConfig, ToolCallsConfig
from openafm.rl.rewards.text import LanguageConsistencyConfig, LengthConfig, RepetitionConfig
from openafm.rl.trajectories import Sample
from openafm.tokenizer.conversation import ToolCall

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ADD, MAIL = ToolCall(name="add", arguments={"x": 1.0, "tags": ["a"]}), ToolCall(name="mail", arguments={})
CALLS = [{"name": "mail"}, {"name": "add", "arguments": {"tags": ["a"], "x": 1}}]


def _value(config: RuleConfig, one: Sample) -> float:
    return config.rule()(one)


@pytest.mark.parametrize(("text", "value"), [('{"n": 1}', 1), ('{"n": "1"}', 0), ('{"n": NaN}', 0), ("[" * 10_000, 0)])
def test_json_must_satisfy_the_schema_of_the_truth_or_of_the_prompt(text: str, value: float) -> None:
    assert _value(JsonSchemaConfig(), sample(text, {"schema": SCHEMA})) == value
    assert _value(JsonSchemaConfig(), sample(text, schema=SCHEMA)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": {"b": " x "}, "c": [1.0, 2]}', 1),
        ('{"a": {"b": "x"}, "c": [1, 3]}', 2 / 3),
        ('{"a": {"b": "x"}, "c": [1, 2], "d": 0}', 3 / 4),
        ('{"a": {"b": "x"}}', 1 / 3),
        ("no JSON", 0),
    ],
)
def test_fields_are_counted(text: str, value: float) -> None:
    assert _value(FieldsConfig(), sample(text, {"value": {"a": {"b": "x"}, "c": [1, 2]}})) == pytest.approx(value)


def test_tool_calls_are_compared_in_any_order_or_in_order() -> None:
    right = sample("done", {"calls": CALLS}, calls=(ADD, MAIL))
    assert _value(ToolCallsConfig(), right) == 1
    assert _value(ToolCallsConfig(is_ordered=True), right) == 0
    one = sample("done", {"calls": CALLS}, calls=(ADD,))
    assert _value(ToolCallsConfig(), one) == 0
    assert _value(ToolCallsConfig(partial=True), one) == pytest.approx(2 / 3)
    assert _value(ToolCallsConfig(), sample("text", {"calls": []})) == 1
    assert _value(ToolCallsConfig(partial=True), sample("text", {"calls": []}, calls=(ADD,))) == 0


def test_the_final_state_decides_however_it_was_reached() -> None:
    truth: dict[str, Any] = {"state": {"orders": [{"id": 1, "price": 2.0}]}, "contains": ["Order 1"]}
    state = {"orders": [{"price": 2, "id": 1}]}
    assert _value(FinalStateConfig(), sample("Your order 1 is placed", truth, state=state)) == 1
    assert _value(FinalStateConfig(), sample("Done", truth, state=state)) == 0
    assert _value(FinalStateConfig(), sample("order 1", truth, state={"orders": []})) == 0


def test_length_is_free_up_to_a_limit() -> None:
    config = LengthConfig(free_tokens=10, max_tokens=20)
    assert [_value(config, sample("x", num_tokens=count)) for count in (5, 10, 15, 20, 99)] == [0, 0, -0.5, -1, -1]
    assert _value(config, sample("x", num_tokens=5, is_truncated=True)) == -1


def test_repetition_counts_repeated_ngrams() -> None:
    assert _value(RepetitionConfig(n=2), sample("a b c d")) == 0
    assert _value(RepetitionConfig(n=2), sample("a b a b a b")) == pytest.approx(-3 / 5)
    assert _value(RepetitionConfig(n=1), sample("好好好好")) == -0.75
    assert _value(RepetitionConfig(), sample("")) == 0


def test_the_answer_is_in_the_language_of_the_prompt() -> None:
    german = "Heute scheint die Sonne über den Bergen, und wir gehen mit den Kindern wandern."
    english = "The sun shines over the mountains today, and we go hiking with the children."
    config = LanguageConsistencyConfig()
    assert _value(config, sample(german, language="de-AT")) > 0.95
    assert _value(config, sample(english, language="de")) < 0.05
    assert _value(config, sample(english, question=german)) < 0.05
    assert _value(config, sample(english, {"language": "en"}, question=german)) > 0.95
    assert _value(config, sample("42", language="de")) == 1


def test_instructions_give_the_share_that_is_followed() -> None:
    truth = {"instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"], "kwargs": [{}, {}]}
    assert _value(InstructionsConfig(), sample("a, b", truth)) == 0.5
    assert _value(InstructionsConfig(all_or_nothing=True), sample("a, b", truth)) == 0
    assert _value(InstructionsConfig(is_loose=True), sample("Sure,\nhello", truth)) == 1


@pytest.mark.parametrize(
    "config",
    [
        JsonSchemaConfig(),
        FieldsConfig(),
        ToolCallsConfig(),
        FinalStateConfig(),
        InstructionsConfig(),
        LanguageConsistencyConfig(),
    ],
)
def test_a_truth_of_another_form_is_an_error_of_the_sample(config: RuleConfig) -> None:
    truth = {"calls": "no list", "state": 1, "schema": 1, "language": 1}
    (score,) = config.build()([sample("{}", truth)])
    assert "TruthError" in score.error or "InstructionError" in score.error
