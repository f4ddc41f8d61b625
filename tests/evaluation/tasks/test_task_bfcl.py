"""BFCL: conversion of its schemas, and the AST checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openafm.evaluation.harness.task import Output, TaskDataError
from openafm.evaluation.tasks.bfcl import BFCLConfig, json_schema
from openafm.evaluation.tasks.bfcl_checks import wrong_calls

FUNCTION = {
    "name": "f",
    "parameters": {
        "type": "dict",
        "properties": {
            "a": {"type": "integer"},
            "x": {"type": "float"},
            "s": {"type": "string"},
            "l": {"type": "array", "items": {"type": "string"}},
            "d": {"type": "dict"},
            "o": {"type": "array", "items": {"type": "dict"}},
        },
        "required": ["a"],
    },
}


@pytest.mark.parametrize(
    ("arguments", "accepted", "is_right"),
    [
        ({"a": 1}, {"a": [1]}, True),
        ({"a": 1}, {"a": [1], "s": ["x", ""]}, True),
        ({"a": 1}, {"a": [1], "s": ["x"]}, False),  # not optional
        ({"a": 2}, {"a": [1]}, False),
        ({"a": "1"}, {"a": [1]}, False),
        ({"a": 1.0}, {"a": [1]}, False),  # a float is no integer
        ({"a": True}, {"a": [1]}, False),
        ({"a": "n"}, {"a": ["n"]}, True),  # a variable
        ({"a": 1, "x": 2}, {"a": [1], "x": [2.0]}, True),
        ({"a": 1, "s": "April 1, 2024"}, {"a": [1], "s": ["april 1 2024"]}, True),
        ({"a": 1, "s": "b"}, {"a": [1], "s": ["a"]}, False),
        ({"a": 1, "l": ["A", "b"]}, {"a": [1], "l": [["a", "b"]]}, True),
        ({"a": 1, "l": ["b", "a"]}, {"a": [1], "l": [["a", "b"]]}, False),
        ({"a": 1, "l": [1]}, {"a": [1], "l": [["a"]]}, False),
        ({"a": 1, "d": {"k": "V"}}, {"a": [1], "d": [{"k": ["v"], "m": [""]}]}, True),
        ({"a": 1, "d": {"z": 1}}, {"a": [1], "d": [{"k": ["v"]}]}, False),
        ({"a": 1, "o": [{"k": 1}]}, {"a": [1], "o": [[{"k": [1, 2]}]]}, True),
        ({"a": 1, "o": []}, {"a": [1], "o": [[{"k": [1]}]]}, False),
        ({"a": 1, "z": 1}, {"a": [1]}, False),
        ({}, {"a": [1]}, False),
    ],
)
def test_arguments(arguments: dict[str, Any], accepted: dict[str, Any], is_right: bool) -> None:
    assert (wrong_calls([FUNCTION], [("f", arguments)], [{"f": accepted}]) == "") is is_right


def test_calls_are_matched_in_any_order() -> None:
    accepted: list[dict[str, Any]] = [{"f": {"a": [1]}}, {"f": {"a": [2]}}]
    assert wrong_calls([FUNCTION], [("f", {"a": 2}), ("f", {"a": 1})], accepted) == ""
    assert "no call equals f" in wrong_calls([FUNCTION], [("f", {"a": 1}), ("f", {"a": 1})], accepted)
    assert wrong_calls([FUNCTION], [("f", {"a": 1})], accepted) == "expected 2 calls, got 1"
    assert "called g" in wrong_calls([FUNCTION], [("g", {"a": 1})], accepted[:1])


def test_schemas_become_json_schema() -> None:
    assert json_schema(
        {"type": "dict", "properties": {"t": {"type": "tuple", "items": {"type": "float"}}, "v": {"type": "any"}}}
    ) == {
        "type": "object",
        "properties": {"t": {"type": "array", "items": {"type": "number"}}, "v": {}},
    }


def test_items_and_verdicts(tmp_path: Path) -> None:
    row = {
        "id": "simple_python_0",
        "question": [[{"role": "system", "content": "Be exact."}, {"role": "user", "content": "Call it."}]],
        "function": [{**FUNCTION, "name": "m.f", "description": "F."}],
    }
    (tmp_path / "BFCL_v4_simple_python.json").write_text(json.dumps(row))
    (tmp_path / "possible_answer").mkdir()
    answer = {"id": "simple_python_0", "ground_truth": [{"m.f": {"a": [1]}}]}
    (tmp_path / "possible_answer" / "BFCL_v4_simple_python.json").write_text(json.dumps(answer))
    task = BFCLConfig(categories=("simple_python",))
    (item,) = task.items(tmp_path)
    assert (item.prompt.instructions, item.prompt.text) == ("Be exact.", "Call it.")
    assert item.prompt.tools[0]["name"] == "m_f"
    assert task.judge(item, Output(calls=({"name": "m_f", "arguments": {"a": 1}},))).scores == {"accuracy": 1.0}
    wrong = task.judge(item, Output(text="1"))
    assert (wrong.scores, wrong.extraction) == ({"accuracy": 0.0}, "no call")
    (tmp_path / "BFCL_v4_irrelevance.json").write_text(json.dumps({**row, "id": "irrelevance_0"}))
    (item,) = BFCLConfig(categories=("irrelevance",)).items(tmp_path)
    assert task.judge(item, Output(text="I cannot.")).scores == {"accuracy": 1.0}
    (tmp_path / "possible_answer" / "BFCL_v4_simple_python.json").write_text(json.dumps({**answer, "id": "other"}))
    with pytest.raises(TaskDataError, match="no answer for simple_python_0"):
        list(task.items(tmp_path))
