"""The pieces of a transcript's JSON, read and written: segments, tools, response formats, options.

The shape is that of Apple's framework, version 1:

    {"version": 1, "type": "FoundationModels.Transcript", "transcript": {"entries": [
        {"id": "...", "role": "instructions", "contents": [segment, ...], "tools": [{"type": "function", "function": {}}]},
        {"id": "...", "role": "user", "contents": [...], "options": {...}, "responseFormat": {...}},
        {"id": "...", "role": "response", "toolCalls": [{"id": "...", "name": "...", "arguments": "JSON"}]},
        {"id": "...", "role": "tool", "toolName": "...", "toolCallID": "...", "contents": [...]},
        {"id": "...", "role": "response", "contents": [...], "assets": ["name", ...]}]}}

A segment is `{"id", "type": "text", "text"}` or `{"id", "type": "structure", "structure": {"source", "content"}}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from openafm.framework.errors import DecodingFailureError
from openafm.framework.options import GenerationOptions, SamplingMode, SamplingModeType, ToolCallingMode
from openafm.framework.schema.partial_json import is_deeper, read_json
from openafm.tokenizer.conversation import JsonSchema, ToolCall, ToolDefinition
from openafm.tokenizer.schema_text import SchemaTextError, compact_json, schema_text

Wire = dict[str, Any]
T = TypeVar("T")

_KINDS: dict[type, str] = {str: "text", dict: "an object", list: "a list"}
_DEEPEST = 150  # levels of JSON; recursive functions walk it


class TranscriptError(DecodingFailureError):
    """A dictionary that is not a transcript; the message names the entry and the key."""


def json_copy(value: Any) -> Any:
    """A copy of a JSON value that shares nothing with it.

    Raises:
        TranscriptError: the value is not JSON, or nested too deep.
    """
    try:
        copied = json.loads(compact_json(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise TranscriptError(f"a transcript is JSON: {error}") from error
    if is_deeper(copied, _DEEPEST):
        raise TranscriptError(f"a transcript is nested {_DEEPEST} levels deep at most")
    return copied


def required(wire: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """The value under `key`, which must be a `kind`.

    Raises:
        TranscriptError: it is missing or something else.
    """
    if key not in wire:
        raise TranscriptError(f"'{key}' is missing")
    return checked(wire[key], kind, f"'{key}'")


def optional(wire: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """The value under `key`, an empty `kind` where there is none.

    Raises:
        TranscriptError: it is something else.
    """
    return checked(wire[key], kind, f"'{key}'") if key in wire else kind()


def checked(value: Any, kind: type[T], name: str) -> T:
    """`value`, which must be a `kind`.

    Raises:
        TranscriptError: it is something else.
    """
    if not isinstance(value, kind):
        raise TranscriptError(f"{name} must be {_KINDS[kind]}, got {value!r:.80}")
    return value


def text_segment(text: str) -> Wire:
    return {"id": "0", "type": "text", "text": text}


def structure_segment(source: str, text: str) -> Wire:
    """A segment of JSON text under the schema named `source`. Where the text is not compact JSON in the order of its keys,
    as when a model wrote 1.50, it is kept beside the value: a session prefills what was written, to the token."""
    content = read_json(text)
    segment = {"id": "0", "type": "structure", "structure": {"source": source, "content": content}}
    return segment if compact_json(content) == text else segment | {"text": text}


def read_text(contents: list[Any]) -> str:
    """The text of segments, one to a line.

    Raises:
        TranscriptError: something else than text and structures, such as an image.
    """
    return "\n".join(map(_segment_text, contents))


def read_source(contents: list[Any]) -> str | None:
    """The name of the schema of the structure that the segments are; None when they are text."""
    sources = [segment["structure"].get("source") for segment in contents if segment["type"] == "structure"]
    return str(sources[0] or "") if sources else None


def _segment_text(segment: Any) -> str:
    segment = checked(segment, dict, "a segment")
    match required(segment, "type", str):
        case "text":
            return required(segment, "text", str)
        case "structure":
            structure = required(segment, "structure", dict)
            if "content" not in structure:
                raise TranscriptError("a structure needs 'content'")
            return _structure_text(structure["content"], segment.get("text"))
        case other:
            raise TranscriptError(f"unknown segment type {other!r}; known: text, structure")


def _structure_text(content: Any, text: Any) -> str:
    """`text` where it is still that of `content`, which may have been edited since."""
    if isinstance(text, str):
        try:
            if _sorted_json(read_json(text)) == _sorted_json(content):
                return text
        except ValueError:
            pass  # not JSON: the content counts
    return compact_json(content)


def _sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def tool_wire(tool: ToolDefinition) -> Wire:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def read_tool(wire: Any) -> ToolDefinition:
    """Raises `TranscriptError` for what does not define a tool."""
    function = required(checked(wire, dict, "a tool"), "function", dict)
    return ToolDefinition(
        name=required(function, "name", str),
        description=optional(function, "description", str),
        parameters=_read_schema(function, "parameters"),
    )


def tool_call_wire(call: ToolCall, call_id: str) -> Wire:
    return {"id": call_id, "name": call.name, "arguments": compact_json(call.arguments)}


def read_tool_call(wire: Any) -> ToolCall:
    """Raises `TranscriptError` for what is not a call; its arguments are an object as JSON text."""
    call = checked(wire, dict, "a tool call")
    try:
        arguments = read_json(required(call, "arguments", str))
    except ValueError as error:
        raise TranscriptError(f"'arguments' of a tool call are not JSON: {error}") from error
    return ToolCall(name=required(call, "name", str), arguments=checked(arguments, dict, "'arguments'"))


def response_format_wire(schema: JsonSchema) -> Wire:
    return {"type": "jsonSchema", "jsonSchema": {"name": schema.get("title", ""), "schema": schema}}


def read_response_format(wire: Mapping[str, Any]) -> JsonSchema:
    """Raises `TranscriptError` for anything but a JSON Schema."""
    if required(wire, "type", str) != "jsonSchema":
        raise TranscriptError(f"unknown response format {wire['type']!r}; known: jsonSchema")
    return _read_schema(required(wire, "jsonSchema", dict), "schema")


def _read_schema(wire: Mapping[str, Any], key: str) -> JsonSchema:
    schema = required(wire, key, dict)
    try:
        schema_text(schema)
    except (SchemaTextError, RecursionError) as error:
        raise TranscriptError(f"'{key}' is no schema: {error}") from error
    return schema


def read_options(wire: Mapping[str, Any]) -> GenerationOptions:
    """The options that openafm has; others are history, and stay in the entry's JSON.

    Raises:
        TranscriptError: a value out of range.
    """
    sampling, mode = wire.get("sampling"), wire.get("tool_calling_mode")
    try:
        return GenerationOptions(
            sampling=_read_sampling(sampling) if isinstance(sampling, dict) else None,
            temperature=wire.get("temperature"),
            maximum_response_tokens=wire.get("maximum_response_tokens"),
            tool_calling_mode=None if mode is None else ToolCallingMode(mode),
        )
    except ValueError as error:
        raise TranscriptError(f"'options': {error}") from error


def _read_sampling(wire: Mapping[str, Any]) -> SamplingMode | None:
    match wire.get("mode"):
        case SamplingModeType.GREEDY:
            return SamplingMode.greedy()
        case SamplingModeType.RANDOM:
            return SamplingMode.random(wire.get("top_k"), wire.get("top_p"), wire.get("seed"))
        case _:
            return None
