"""The format of tool calls: a compact JSON array of `{"name":...,"arguments":{...}}`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openafm.tokenizer.conversation import ConversationError, JsonSchema, ToolCall, ToolDefinition
from openafm.tokenizer.schema_text import compact_json, reference_to


def tool_calls_text(calls: Sequence[ToolCall]) -> str:
    """Return the text of one or several parallel calls."""
    return compact_json([{"name": call.name, "arguments": call.arguments} for call in calls])


def parse_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Return the calls of a text: the inverse of `tool_calls_text`.

    Raises:
        ConversationError: the text is not JSON, or not a non-empty array of calls.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConversationError(f"tool calls are not JSON: {error}") from error
    if not isinstance(values, list) or not values:
        raise ConversationError("tool calls must be a non-empty JSON array")
    return tuple(map(_call, values))


def tool_calls_schema(tools: Sequence[ToolDefinition]) -> JsonSchema:
    """Return the JSON Schema of tool calls: one or more, each of a known tool with arguments that fit its parameters.

    Parameters that contain references move to `$defs`, and their references are adapted.
    """
    definitions: dict[str, Any] = {}
    variants = []
    for tool in tools:
        parameters = tool.parameters
        if '"$ref"' in compact_json(parameters):
            pointer = reference_to(tool.name)
            definitions[tool.name] = _rebased(parameters, pointer)
            parameters = {"$ref": pointer}
        variants.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: JsonSchema = {"type": "array", "items": {"anyOf": variants}, "minItems": 1}
    return schema | {"$defs": definitions} if definitions else schema


def _rebased(schema: Any, pointer: str) -> Any:
    """`schema` with its local references prefixed by `pointer`, its new place."""
    if isinstance(schema, list):
        return [_rebased(item, pointer) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rebased = {key: _rebased(value, pointer) for key, value in schema.items()}
    reference = schema.get("$ref")
    return rebased | {"$ref": pointer + reference[1:]} if isinstance(reference, str) and reference[:1] == "#" else rebased


def _call(value: Any) -> ToolCall:
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        raise ConversationError(f"a tool call needs exactly the keys name and arguments, got {compact_json(value)}")
    if not isinstance(value["name"], str) or not isinstance(value["arguments"], dict):
        raise ConversationError(f"a tool call needs a string as name and an object as arguments, got {compact_json(value)}")
    return ToolCall(name=value["name"], arguments=value["arguments"])
