"""A JSON Schema as the grammar engine should read it: what JSON Schema and Python mean, said so that the engine enforces it.

- properties in the order of `x-order`, which is the order of generation;
- numbers within ±1e18, so that none is an infinity or longer than Python reads;
- dates that exist: a year from 0001, and 29 February only in leap years.
"""

from __future__ import annotations

from typing import Any

from openafm.framework.value_types import LARGEST_NUMBER
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import ordered_properties

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = f"^(?:{_LEAP_YEAR}-02-29|{_YEAR}-02-(?:[01][0-9]|2[0-8])|{_YEAR}-(?:0[13-9]|1[0-2])-[0-3][0-9])$"

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")


def grammar_schema(schema: JsonSchema) -> JsonSchema:
    """The schema to compile a grammar from: accepts nothing that `schema` refuses. `schema` itself is left as it is."""
    return _object(schema)


def _rewritten(schema: Any) -> Any:
    return _object(schema) if isinstance(schema, dict) else schema


def _object(schema: JsonSchema) -> JsonSchema:
    rewritten = dict(schema)
    for key in _SCHEMAS_BY_NAME:
        if isinstance(schema.get(key), dict):
            rewritten[key] = {name: _rewritten(below) for name, below in schema[key].items()}
    for key in _SCHEMA_LISTS:
        if isinstance(schema.get(key), list):
            rewritten[key] = [_rewritten(below) for below in schema[key]]
    for key in _SCHEMAS:
        if key in schema:
            rewritten[key] = _rewritten(schema[key])
    if isinstance(schema.get("properties"), dict):
        rewritten["properties"] = {name: rewritten["properties"][name] for name in ordered_properties(schema)}
    if "enum" in schema or "const" in schema:
        return rewritten
    types = schema.get("type")
    if {"integer", "number"} & set(types if isinstance(types, list) else [types]):
        rewritten |= _bounds(schema)
    if types == "string" and schema.get("format") == "date":
        rewritten = {"allOf": [rewritten, {"pattern": _DATE}]} if "pattern" in schema else rewritten | {"pattern": _DATE}
    return rewritten


def _bounds(schema: JsonSchema) -> JsonSchema:
    bounds: JsonSchema = {}
    if "minimum" not in schema and "exclusiveMinimum" not in schema:
        bounds["minimum"] = -LARGEST_NUMBER
    if "maximum" not in schema and "exclusiveMaximum" not in schema:
        bounds["maximum"] = LARGEST_NUMBER
    return bounds
