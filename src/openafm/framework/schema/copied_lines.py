"""Strings that are lines of the prompt, for models that choose a line better than they copy it.

Headings that follow each other are one text, and so may be two other lines; what follows a colon is one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openafm.tokenizer.conversation import JsonSchema

MOST_LINES = 400
_HEADING = "# "
_OTHER_GUIDES = frozenset({"enum", "const", "pattern", "format", "minLength", "maxLength"})
_NAMED = frozenset({"properties", "$defs", "definitions"})  # schemas by name
_SCHEMAS = frozenset({"items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties"})


def with_copied_lines(schema: JsonSchema, text: str) -> JsonSchema:
    """Return a schema whose strings without another guide are lines of a text; the schema itself if the text has none."""
    lines = copied_lines(text)
    found: JsonSchema = _guided(schema, lines) if lines else schema
    return found


def copied_lines(text: str) -> list[str]:
    """Return the texts that a string may be, in the order of the first lines of each; at most `MOST_LINES`."""
    found: list[str] = []
    headings: list[str] = []
    before = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith(_HEADING):
            headings.append(line.removeprefix(_HEADING).strip())
            continue
        if headings:
            found.append(" ".join(headings))
            headings, before = [], ""
        if line := line.strip():
            found += [line, line.partition(": ")[2].strip(), f"{before} {line}" if before else ""]
            before = line
    return [each for each in dict.fromkeys(found) if each][:MOST_LINES]


def _guided(value: Any, lines: list[str]) -> Any:
    if isinstance(value, list):
        return [_guided(each, lines) for each in value]
    if not isinstance(value, Mapping):
        return value
    kind = value.get("type")
    if not _OTHER_GUIDES & value.keys():
        if kind == "string":
            return {**value, "enum": lines}
        if isinstance(kind, list) and set(kind) == {"string", "null"}:
            return {**value, "enum": [*lines, None]}
    return {key: _inside(key, each, lines) for key, each in value.items()}


def _inside(key: str, value: Any, lines: list[str]) -> Any:
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _guided(each, lines) for name, each in value.items()}
    return _guided(value, lines) if key in _SCHEMAS else value
