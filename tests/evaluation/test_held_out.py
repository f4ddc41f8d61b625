"""Held-out scores: grading by hand, baselines, and an untrained model on every task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openafm import SystemLanguageModel
from openafm.bundle import shipped_bundle
from openafm.core.errors import UsageError
from openafm.evaluation.calculator import WordProblem, calculate
from openafm.evaluation.forms import share_of_fields
from openafm.evaluation.guesses import guess
from openafm.evaluation.held_out import TASKS, HeldOutScores, TaskScore, held_out_scores
from openafm.evaluation.tool_requests import ToolRequest
from openafm.evaluation.tool_turns import next_turn
from openafm.tokenizer.conversation import AssistantTurn, ToolCall, UserTurn


def gold(example: Any) -> Any:
    return " ".join(map(str, example.results)) if isinstance(example, WordProblem) else example.gold


def wrong(example: Any) -> Any:
    if isinstance(example, WordProblem):
        return " ".join(str(result + 1) for result in example.results)
    if isinstance(example, ToolRequest):
        return None if example.gold.tool_calls else AssistantTurn(tool_calls=(ToolCall(name="?", arguments={}),))
    return {"title": "?"} if isinstance(example.gold, dict) else '{"tags":["?"]}'


@pytest.mark.parametrize("task", TASKS)
def test_the_reference_scores_one_and_a_wrong_answer_less(task: str) -> None:
    examples = TASKS[task].examples(60, None)
    assert len({example.language for example in examples}) > 8
    assert {TASKS[task].grade(example, gold(example)) for example in examples} == {1.0}
    assert all(TASKS[task].grade(example, wrong(example)) < 1 for example in examples)


@pytest.mark.parametrize("task", TASKS)
def test_baselines_score_between_zero_and_one(task: str) -> None:
    examples = TASKS[task].examples(120, {"en": 1.0})
    for answer in TASKS[task].baselines.values():
        mean = sum(TASKS[task].grade(example, answer(example)) for example in examples) / len(examples)
        assert 0 < mean < 0.9


def test_tags_are_compared_by_value_and_truncated_answers_fail() -> None:
    (example,) = TASKS["tagging"].examples(1, None)
    assert TASKS["tagging"].grade(example, example.gold.replace(":", " : ")) == 1
    assert TASKS["tagging"].grade(example, "") == 0


def test_every_result_must_be_a_number_of_the_answer() -> None:
    problem = next(problem for problem in TASKS["arithmetic"].examples(60, None) if len(problem.results) == 2)
    first, second = problem.results
    grade = TASKS["arithmetic"].grade
    assert grade(problem, f"{second}, then {first}!") == 1
    assert grade(problem, f"{first}") == 0
    assert grade(problem, f"{first}{second}") == 0


@pytest.mark.parametrize(
    ("expression", "result"),
    [("12*34", "408"), ("7 - 9", "-2"), ("84/7", "12"), ("1/4", "0.25"), ("1/0", "error"), ("2**9", "error"), ("", "error")],
)
def test_the_calculator(expression: str, result: str) -> None:
    assert calculate(expression) == result


def test_calls_are_compared_as_sets_and_arguments_by_value() -> None:
    requests = TASKS["tool"].examples(60, {"en": 1.0})
    grade = TASKS["tool"].grade
    request = next(request for request in requests if len(request.gold.tool_calls) == 2)
    first, second = request.gold.tool_calls
    assert grade(request, AssistantTurn(tool_calls=(second, first))) == 1
    assert grade(request, AssistantTurn(tool_calls=(first,))) == 0
    assert grade(request, AssistantTurn(tool_calls=(first, first))) == 0
    assert grade(request, AssistantTurn(tool_calls=(first, second, first))) == 0
    assert grade(request, AssistantTurn(tool_calls=(first, replace(second, arguments=second.arguments | {"?": 1})))) == 0
    assert grade(request, AssistantTurn(text="Done.")) == grade(request, None) == 0


def test_any_text_is_correct_if_no_call_is_needed() -> None:
    grade = TASKS["tool"].grade
    request = next(request for request in TASKS["tool"].examples(60, {"en": 1.0}) if not request.gold.tool_calls)
    assert grade(request, AssistantTurn(text="Hello!")) == 1
    assert grade(request, AssistantTurn(text="")) == grade(request, None) == 0


def test_a_request_beyond_the_context_has_no_answer() -> None:
    shipped = shipped_bundle()
    assert shipped is not None
    model = SystemLanguageModel(bundle=shipped).load()
    assert next_turn(model, (UserTurn(text="word " * model.engine.context_length),), (), 1) is None


def test_an_answer_that_does_not_end_is_none() -> None:
    shipped = shipped_bundle()
    assert shipped is not None
    model = SystemLanguageModel(bundle=shipped).load()
    request = next(request for request in TASKS["tool"].examples(60, {"en": 1.0}) if request.gold.tool_calls)
    assert next_turn(model, (request.instructions, request.request), request.instructions.tools, 1) is None


def test_fields_of_forms_by_hand() -> None:
    gold = {"a": 1, "b": {"c": "x", "d": ["y", "z"]}}
    assert share_of_fields(gold, gold) == 1
    assert share_of_fields(gold, {"a": 1.0, "b": {"c": "x", "d": ["y"]}}) == pytest.approx(2 / 3)
    assert share_of_fields(gold, gold | {"e": 1}) == 0.75
    assert share_of_fields(gold, {"a": 1}) == pytest.approx(1 / 3)
    assert share_of_fields("x", "x") == 1
    assert share_of_fields("x", "y") == share_of_fields("x", {"a": "x"}) == 0


def test_a_guess_uses_the_text_after_names_and_unused_words() -> None:
    texts = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "kindOfBed": texts,
            "room": {"$ref": "#/$defs/Room"},
            "spice": {"type": "string", "enum": ["mild", "hot"]},
            "rare": texts,
            "other": texts,
        },
        "required": ["kindOfBed", "room", "spice", "other"],
        "$defs": {
            "Room": {
                "type": "object",
                "properties": {"big": {"type": "boolean"}, "floors": {"type": "array", "items": {"type": "integer"}}},
                "required": ["big", "floors"],
            }
        },
    }
    assert guess(schema, "The kind of bed is a twin; big = no, on 12, hot, please") == {
        "kindOfBed": "a twin",
        "room": {"big": False, "floors": [12]},
        "spice": "hot",
        "other": "please",
    }
    assert guess({"type": "integer"}, "none") == 0


def test_exact_match_is_the_mean_of_exact_tasks() -> None:
    def score(value: float, metric: str, baseline: float) -> TaskScore:
        return TaskScore(
            score=value, metric=metric, num_examples=4, languages={"en": value}, baselines={"a": 0.0, "b": baseline}
        )

    scores = HeldOutScores(tasks={"x": score(0.5, "exact", 0.4), "y": score(1, "exact", 0.91), "z": score(0.2, "other", 0)})
    assert scores.exact_match == 0.75
    assert [task.is_well_above_baselines for task in scores.tasks.values()] == [True, False, True]
    assert HeldOutScores(tasks={"z": scores.tasks["z"]}).exact_match is None


def test_scores_of_equal_examples_have_intervals_and_differences() -> None:
    def score(*values: float) -> TaskScore:
        mean = sum(values) / max(len(values), 1)
        return TaskScore(score=mean, metric="exact", num_examples=len(values), languages={}, baselines={}, values=values)

    before, after = score(*[1.0] * 40, *[0.0] * 10), score(*[1.0] * 20, *[0.0] * 30)
    assert before.interval == pytest.approx((0.6696, 0.8876), abs=1e-4)  # Wilson's of 40 of 50
    assert before.text == "80.0 % [67, 89]"
    change = after.change_from(before)
    assert change is not None
    assert change.text.startswith("-40.0 [")
    assert change.text.endswith(" *")
    assert after.change_from(score()) is None
    assert after.change_from(score(1.0)) is None
    assert score().interval is None
    assert score().text == "0.0 %"


def test_invalid_calls_are_refused() -> None:
    model = SystemLanguageModel(bundle="nosuch")
    with pytest.raises(UsageError, match="did you mean 'lookup'"):
        held_out_scores(model, ["lokup"])
    with pytest.raises(UsageError, match="at least one"):
        held_out_scores(model, num_examples=0)


@pytest.mark.slow
def test_an_untrained_model_is_scored_on_every_task(tmp_path: Path) -> None:
    from openafm.bundle import write_bundle
    from openafm.data.documents import ChatDocument, texts_of
    from openafm.data.synthetic import SyntheticConfig, generate
    from openafm.models.sizes import shared_kv_decoder
    from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
    from openafm.tokenizer.chat_template import ChatTemplate

    english = {"en": 1.0}
    texts = [t for c in generate(SyntheticConfig(languages=english), 300) for t in texts_of(ChatDocument(conversation=c))]
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=700), texts)
    config = shared_kv_decoder(
        vocab_size=700,
        dim=16,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        hidden_dim=24,
        context_length=512,
    )
    weights = {name: tensor.numpy() for name, tensor in config.build().state_dict().items()}
    write_bundle(tmp_path / "b", config=config, tokenizer=tokenizer, template=ChatTemplate(), tensors=weights)
    done: list[int] = []
    scores = held_out_scores(
        SystemLanguageModel(bundle=tmp_path / "b"), num_examples=2, languages=english, on_each=done.append
    )
    assert list(scores.tasks) == list(TASKS)
    assert done == list(range(1, 2 * len(TASKS) + 1))
    assert all(task.num_examples == 2 and list(task.languages) == ["en"] for task in scores.tasks.values())
    assert scores.tasks["tagging"].score == 0
    assert scores.to_dict()["tasks"]["event"]["metric"] == "exact"
