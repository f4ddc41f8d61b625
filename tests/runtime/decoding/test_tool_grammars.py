"""Grammars of tool calls over the tools of the Berkeley Function Calling Leaderboard, if its data is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizer import TOKENIZER, accepts

from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.tokenizer.conversation import ToolCall, ToolDefinition
from openafm.tokenizer.tool_calls import tool_calls_schema, tool_calls_text

DATA = Path(__file__).parents[4] / "shared" / "data" / "evaluation" / "bfcl"
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
COMPILER = GrammarCompiler(TOKENIZER)

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/evaluation/bfcl")


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()[::4]]


def json_schema(schema: Any) -> Any:
    """Convert the leaderboard's dialect to JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    converted = {key: json_schema(value) for key, value in schema.items() if key not in ("type", "properties", "optional")}
    if "type" in schema and schema["type"] != "any":
        converted["type"] = TYPES.get(schema["type"], schema["type"])
    if "properties" in schema:
        converted["properties"] = {name: json_schema(value) for name, value in schema["properties"].items()}
    return converted


def arguments(values: dict[str, list[Any]], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the first accepted value of each argument in declared order; "" marks an optional one."""
    chosen = {}
    for name, below in schema.get("properties", {}).items():
        if name in values and (value := values[name][0]) != "":
            chosen[name] = arguments(value, below) if isinstance(value, dict) and "properties" in below else value
    return chosen


@pytest.mark.parametrize("name", ["simple_python", "multiple", "parallel", "parallel_multiple"])
def test_all_tools_compile_and_nearly_all_reference_calls_are_allowed(name: str) -> None:
    questions, answers = lines(f"BFCL_v4_{name}.json"), lines(f"possible_answer/BFCL_v4_{name}.json")
    refused = 0
    for question, answer in zip(questions, answers, strict=True):
        schemas = {tool["name"]: json_schema(tool["parameters"]) for tool in question["function"]}
        tools = [ToolDefinition(name=name, description="", parameters=schema) for name, schema in schemas.items()]
        grammar = COMPILER.json_schema(tool_calls_schema(tools))
        calls = [
            ToolCall(name=name, arguments=arguments(values, schemas[name]))
            for call in answer["ground_truth"]
            for name, values in call.items()
        ]
        refused += not accepts(grammar, tool_calls_text(calls))
    # Refused are answers that do not fit their own schema, and numbers that Python writes with an exponent.
    assert refused <= 0.03 * len(questions)
