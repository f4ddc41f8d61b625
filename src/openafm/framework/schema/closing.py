"""Objects of a JSON Schema closed by default: a model generates declared properties only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from openafm.tokenizer.conversation import JsonSchema

_SEPARATE_MAPS = ("properties", "patternProperties")
_SEPARATE = ("items", "additionalProperties", "contains")
_COMBINED_LISTS = ("allOf", "anyOf", "oneOf")
_COMBINED = ("not", "if", "then", "else")
_COMBINATIONS = {*_COMBINED_LISTS, *_COMBINED, "$ref", "dependentSchemas", "dependencies"}
_DEFINITIONS = ("$defs", "definitions")
_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}


def closed_schema(schema: JsonSchema) -> JsonSchema:
    """Return a schema with `additionalProperties: false` wherever it declares properties without `additionalProperties`.

    Objects that several schemas describe together (`allOf`, or `anyOf` beside `properties`) stay open, since each schema
    declares only part of the properties.
    """
    combined = {reference for reference, is_combined in _references(schema, is_combined=False) if is_combined}
    closed: JsonSchema = _closed(schema, is_combined="#" in combined)
    for key in _DEFINITIONS:
        if isinstance(schema.get(key), Mapping):
            definitions = schema[key].items()
            closed[key] = {name: _closed(below, f"#/{key}/{name}" in combined) for name, below in definitions}
    return closed


def _closed(schema: Any, is_combined: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for key, below, is_below_combined in _below(schema, is_combined):
        if isinstance(below, Mapping) and key in _SEPARATE_MAPS:
            closed[key] = {name: _closed(each, is_below_combined) for name, each in below.items()}
        elif isinstance(below, list):
            closed[key] = [_closed(each, is_below_combined) for each in below]
        else:
            closed[key] = _closed(below, is_below_combined)
    declares = isinstance(schema.get("properties"), Mapping) and not schema.keys() & _OPEN
    if declares and not is_combined and not schema.keys() & _COMBINATIONS:
        closed["additionalProperties"] = False
    return closed


def _below(schema: Mapping[str, Any], is_combined: bool) -> Iterator[tuple[str, Any, bool]]:
    """Return keyword, subschemas, and whether they describe a value together with other schemas."""
    describes = bool(schema.keys() & {"properties", "required", "patternProperties", "additionalProperties"})
    alone = not is_combined and not describes and len(schema.keys() & _COMBINATIONS) == 1
    for key in (*_SEPARATE_MAPS, *_SEPARATE, "prefixItems"):
        if key in schema:
            yield key, schema[key], False
    for key in (*_COMBINED_LISTS, *_COMBINED):
        if key in schema:
            yield key, schema[key], not (alone and key in ("anyOf", "oneOf"))


def _references(schema: Any, is_combined: bool) -> Iterator[tuple[str, bool]]:
    """Return each reference, and whether its target describes a value together with other schemas."""
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each, is_combined)
    if not isinstance(schema, Mapping):
        return
    if isinstance(schema.get("$ref"), str):
        describes = schema.keys() & {"properties", "required", *_COMBINED_LISTS, *_COMBINED}
        yield schema["$ref"], is_combined or bool(describes)
    for key, below, is_below_combined in _below(schema, is_combined):
        inner = below.values() if isinstance(below, Mapping) and key in _SEPARATE_MAPS else [below]
        for each in inner:
            yield from _references(each, is_below_combined)
    for key in _DEFINITIONS:
        for each in schema[key].values() if isinstance(schema.get(key), Mapping) else ():
            yield from _references(each, is_combined=False)
