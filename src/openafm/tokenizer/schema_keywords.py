"""What the keywords of a JSON Schema hold (draft 2020-12), and the first keyword of a schema that holds something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
SCHEMAS = ("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains")
_Expectation: TypeAlias = tuple[Callable[[Any], bool], str]
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def keyword_problem(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first keyword of one schema whose value is not allowed, with what is expected; None if all are."""
    return _problem_of(schema, _KEYWORDS)


def _problem_of(schema: Mapping[str, Any], keywords: Mapping[str, _Expectation]) -> tuple[str, str] | None:
    for name, (is_allowed, expected) in keywords.items():
        if name in schema and not is_allowed(schema[name]):
            return name, f"{expected}, got {schema[name]!r:.100}"
    return None


def schema_problem(schema: Any, path: str = "$") -> str | None:
    """Return the path of the first incorrect keyword in a schema and what is expected there; None if none is found."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, Mapping):
        return f"{path}: a schema is an object or a boolean, got {schema!r:.100}"
    if found := _problem_of(schema, _KEYWORDS | _WRITTEN):
        return f"{path}.{found[0]}: {found[1]}"
    problems = (schema_problem(below, f"{path}.{location}") for _, location, below in subschemas(schema))
    return next((problem for problem in problems if problem is not None), None)


def explained(schema: Any, error: Exception) -> str:
    """Return why reading a schema failed: the incorrect keyword, or the error itself if all keywords are correct."""
    try:
        return schema_problem(schema) or str(error)
    except RecursionError:
        return str(error)


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Return keyword, location and schema of each direct subschema."""
    for keyword in SCHEMAS:
        if keyword in schema:
            yield keyword, keyword, schema[keyword]
    for keyword in SCHEMA_LISTS:
        for index, below in enumerate(schema.get(keyword, ())):
            yield keyword, f"{keyword}[{index}]", below
    for keyword in SCHEMA_MAPS:
        for name, below in schema.get(keyword, {}).items():
            yield keyword, f"{keyword}.{name}", below


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value not in (math.inf, -math.inf, math.nan)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_KEYWORDS: dict[str, _Expectation] = {
    "type": (
        lambda value: value in TYPES if isinstance(value, str) else _is_names(value) and set(value) <= set(TYPES),
        f"a type is one of {', '.join(TYPES)}",
    ),
    "enum": (lambda value: isinstance(value, list), "expected a list"),
    "required": (_is_names, "expected a list of strings"),
    "pattern": (_is_text, "expected a string"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "expected a positive number"),
    "uniqueItems": (lambda value: isinstance(value, bool), "expected a boolean"),
    "dependentRequired": (
        lambda value: isinstance(value, Mapping) and all(map(_is_names, value.values())),
        "expected an object of lists of strings",
    ),
}
_KEYWORDS |= dict.fromkeys(_BOUNDS, (_is_number, "expected a number"))
_KEYWORDS |= dict.fromkeys(_COUNTS, (_is_count, "expected a non-negative integer"))
_KEYWORDS |= dict.fromkeys(SCHEMA_MAPS, (lambda value: isinstance(value, Mapping), "expected an object of schemas"))
_KEYWORDS |= dict.fromkeys(SCHEMA_LISTS, (lambda value: isinstance(value, list), "expected a list of schemas"))
_WRITTEN: dict[str, _Expectation] = {
    "description": (_is_text, "expected a string"),
    "x-order": (_is_names, "expected a list of strings"),
}
"""Keywords that validation ignores, and that the text of a schema needs."""
