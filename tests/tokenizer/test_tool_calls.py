"""Tool calls: their schema accepts exactly the calls that the template writes."""

from __future__ import annotations

from typing import Any

import jsonschema
import llguidance
import pytest

from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import ToolCall, ToolDefinition
from openafm.tokenizer.schema_text import compact_json
from openafm.tokenizer.tool_calls import parse_tool_calls, tool_calls_schema, tool_calls_text

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"label": {"$ref": "#/$defs/Label"}, "parts": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["label"],
    "additionalProperties": False,
    "$defs": {"Label": {"type": "string", "maxLength": 5}},
}
TOOLS = (
    ToolDefinition(name="move", description="", parameters=POINT),
    ToolDefinition(name="grow/a~tree", description="", parameters=TREE),
)
GOOD = (
    (ToolCall(name="move", arguments={"x": 1}),),
    (ToolCall(name="grow/a~tree", arguments={"label": "a", "parts": [{"label": "b", "parts": []}]}),),
    (ToolCall(name="move", arguments={"x": 1}), ToolCall(name="move", arguments={"x": -2})),
)
BAD = (
    '[{"name":"move","arguments":{"x":"1"}}]',
    '[{"name":"stop","arguments":{}}]',
    '[{"name":"move","arguments":{"label":"a"}}]',
    '[{"name":"grow/a~tree","arguments":{"label":"a","parts":[{"label":"too long"}]}}]',
    '[{"name":"grow/a~tree","arguments":{"label":"a","parts":[{"x":1}]}}]',
    '{"name":"move","arguments":{"x":1}}',
    "[]",
)


def accepts(tokenizer: Tokenizer, schema: dict[str, Any], text: str) -> bool:
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer(tokenizer.to_json(), eos_token=tokenizer.special.turn_end), grammar
    )
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.encode(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("calls", GOOD)
def test_good_calls_pass(tokenizer: Tokenizer, calls: tuple[ToolCall, ...]) -> None:
    text = tool_calls_text(calls)
    assert parse_tool_calls(text) == calls
    jsonschema.validate([{"name": call.name, "arguments": call.arguments} for call in calls], tool_calls_schema(TOOLS))
    assert accepts(tokenizer, tool_calls_schema(TOOLS), text)


@pytest.mark.parametrize("text", BAD)
def test_bad_calls_do_not(tokenizer: Tokenizer, text: str) -> None:
    assert not accepts(tokenizer, tool_calls_schema(TOOLS), text)


def test_parameters_are_unchanged() -> None:
    before = compact_json(TREE)
    tool_calls_schema(TOOLS)
    assert compact_json(TREE) == before
