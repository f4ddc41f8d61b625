"""Read and write the parts of a transcript's JSON: segments, tools, response formats, options.

The wire format of Apple's framework, version 1:

    {"version": 1, "type": "FoundationModels.Transcript", "transcript": {"entries": [
        {"id": "...", "role": "instructions", "contents": [segment, ...], "tools": [{"type": "function", "function": {}}]},
        {"id": "...", "role": "user", "contents": [...], "options": {...}, "responseFormat": {...}},
        {"id": "...", "role": "response", "toolCalls": [{"id": "...", "name": "...", "arguments": "JSON"}]},
        {"id": "...", "role": "tool", "toolName": "...", "toolCallID": "...", "contents": [...]},
        {"id": "...", "role": "response", "contents": [...], "assets": ["name", ...]}]}}

A segment is `{"id", "type": "text", "text"}` or `{"id", "type": "structure", "structure": {"source", "content"}}`. An image
in a prompt is `{"id", "type": "image", "image": {"digest", "numTokens"}}`, a segment of openafm: Apple documents none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from openafm.framework.errors import DecodingFailureError
from openafm.framework.options import GenerationOptions, SamplingMode, SamplingModeType, ToolCallingMode
from openafm.framework.schema.partial_json import is_deeper, read_json
from openafm.tokenizer.conversation import (
    ContentPart,
    ContentTurn,
    ImagePart,
    JsonSchema,
    TextPart,
    ToolCall,
    ToolDefinition,
)
from openafm.tokenizer.schema_text import SchemaTextError, compact_json, schema_text

Wire = dict[str, Any]
T = TypeVar("T")

_KINDS: dict[type, str] = {str: "text", dict: "an object", list: "a list"}
_MAX_DEPTH = 150  # nesting levels of JSON; recursive functions walk it


class TranscriptError(DecodingFailureError):
    """A value is not a valid transcript. The message has the entry and the key."""


def json_copy(value: Any) -> Any:
    """Return a deep copy of a JSON value.

    Raises:
        TranscriptError: the value is not JSON, or is nested too deeply.
    """
    try:
        copied = json.loads(compact_json(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise TranscriptError(f"a transcript must be JSON: {error}") from error
    if is_deeper(copied, _MAX_DEPTH):
        raise TranscriptError(f"a transcript must not be nested deeper than {_MAX_DEPTH} levels")
    return copied


def required(wire: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return the value of `key`.

    Raises:
        TranscriptError: the key is missing, or its value is not a `kind`.
    """
    if key not in wire:
        raise TranscriptError(f"'{key}' is missing")
    return checked(wire[key], kind, f"'{key}'")


def optional(wire: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return the value of `key`, or an empty `kind` if the key is missing.

    Raises:
        TranscriptError: the value is not a `kind`.
    """
    return checked(wire[key], kind, f"'{key}'") if key in wire else kind()


def checked(value: Any, kind: type[T], name: str) -> T:
    """Return `value`.

    Raises:
        TranscriptError: `value` is not a `kind`.
    """
    if not isinstance(value, kind):
        raise TranscriptError(f"{name} must be {_KINDS[kind]}, got {value!r:.80}")
    return value


def text_segment(text: str) -> Wire:
    return {"id": "0", "type": "text", "text": text}


def structure_segment(source: str, text: str) -> Wire:
    """Return a segment of JSON text under the schema named `source`.

    Text that differs from compact JSON, such as 1.50, is stored beside its value, so that a restored session prefills
    exactly the same tokens.
    """
    content = read_json(text)
    segment = {"id": "0", "type": "structure", "structure": {"source": source, "content": content}}
    return segment if compact_json(content) == text else segment | {"text": text}


def content_segments(turn: ContentTurn) -> list[Wire]:
    """Return the segments of a prompt or a tool's output: one of text, or one per part if it has images."""
    if not turn.images:
        return [text_segment(turn.text)]
    return [
        text_segment(part.text)
        if isinstance(part, TextPart)
        else {"id": "0", "type": "image", "image": {"digest": part.digest, "numTokens": part.num_tokens}}
        for part in turn.content
    ]


def read_content(contents: list[Any]) -> tuple[ContentPart, ...]:
    """Return the parts of a prompt or a tool's output. Adjacent texts are separate lines.

    Raises:
        TranscriptError: a segment is not text, a structure or an image.
    """
    parts: list[ContentPart] = []
    lines: list[Any] = []
    for segment in [*contents, None]:
        if isinstance(segment, dict) and segment.get("type") != "image":
            lines.append(segment)
            continue
        if lines:
            parts.append(TextPart(text=read_text(lines)))
            lines = []
        if segment is not None:
            parts.append(_read_image(checked(segment, dict, "a segment")))
    return tuple(parts)


def _read_image(segment: Wire) -> ImagePart:
    image = required(segment, "image", dict)
    num_tokens = image.get("numTokens")
    if not isinstance(num_tokens, int) or num_tokens < 1:
        raise TranscriptError(f"'numTokens' of an image must be a positive integer, got {num_tokens!r:.80}")
    return ImagePart(digest=required(image, "digest", str) or "unknown", num_tokens=num_tokens)


def read_text(contents: list[Any]) -> str:
    """Return the text of segments, one per line.

    Raises:
        TranscriptError: a segment is not text or a structure, for example an image.
    """
    return "\n".join(map(_segment_text, contents))


def read_source(contents: list[Any]) -> str | None:
    """Return the schema name of the first structure; None if all segments are text."""
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
    """Return `text` if it still encodes `content`, else `content` as compact JSON: the content may have been edited."""
    if isinstance(text, str):
        try:
            if _sorted_json(read_json(text)) == _sorted_json(content):
                return text
        except ValueError:
            pass  # not JSON: use the content
    return compact_json(content)


def _sorted_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def tool_wire(tool: ToolDefinition) -> Wire:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def read_tool(wire: Any) -> ToolDefinition:
    """Read a tool definition. Raises `TranscriptError` if it is invalid."""
    function = required(checked(wire, dict, "a tool"), "function", dict)
    return ToolDefinition(
        name=required(function, "name", str),
        description=optional(function, "description", str),
        parameters=_read_schema(function, "parameters"),
    )


def tool_call_wire(call: ToolCall, call_id: str) -> Wire:
    return {"id": call_id, "name": call.name, "arguments": compact_json(call.arguments)}


def read_tool_call(wire: Any) -> ToolCall:
    """Read a tool call, whose arguments are an object as JSON text. Raises `TranscriptError` if it is invalid."""
    call = checked(wire, dict, "a tool call")
    try:
        arguments = read_json(required(call, "arguments", str))
    except ValueError as error:
        raise TranscriptError(f"'arguments' of a tool call are not JSON: {error}") from error
    return ToolCall(name=required(call, "name", str), arguments=checked(arguments, dict, "'arguments'"))


def response_format_wire(schema: JsonSchema) -> Wire:
    return {"type": "jsonSchema", "jsonSchema": {"name": schema.get("title", ""), "schema": schema}}


def read_response_format(wire: Mapping[str, Any]) -> JsonSchema:
    """Read a response format. Raises `TranscriptError` if it is not a JSON Schema."""
    if required(wire, "type", str) != "jsonSchema":
        raise TranscriptError(f"unknown response format {wire['type']!r}; known: jsonSchema")
    return _read_schema(required(wire, "jsonSchema", dict), "schema")


def _read_schema(wire: Mapping[str, Any], key: str) -> JsonSchema:
    schema = required(wire, key, dict)
    try:
        schema_text(schema)
    except (SchemaTextError, RecursionError) as error:
        raise TranscriptError(f"'{key}' is not a valid schema: {error}") from error
    return schema


def read_options(wire: Mapping[str, Any]) -> GenerationOptions:
    """Read the options that openafm supports. Others are ignored here and kept in the entry's JSON.

    Raises:
        TranscriptError: a value is out of range.
    """
    sampling, mode = wire.get("sampling"), wire.get("tool_calling_mode")
    try:
        return GenerationOptions(
            sampling=_read_sampling(sampling) if isinstance(sampling, dict) else None,
            temperature=wire.get("temperature"),
            maximum_response_tokens=wire.get("maximum_response_tokens"),
            tool_calling_mode=None if mode is None else ToolCallingMode(mode),
            closes_at_limit=wire.get("closes_at_limit"),
            copies_lines=wire.get("copies_lines"),
            image_detail=wire.get("image_detail"),
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
