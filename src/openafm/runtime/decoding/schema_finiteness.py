"""Schemas whose values would all be infinite, such as an object that requires itself. No answer can satisfy them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.tokenizer.conversation import JsonSchema

_MAPS = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not")
_MAX_ROUNDS = 64  # bounds the work if definitions have an unfavorable order


def check_finite(schema: JsonSchema) -> None:
    """Check that a finite value can satisfy a schema.

    Raises:
        UnsupportedSchemaError: its required parts contain each other without end.
    """
    nodes = list(_nodes(schema))
    finite: set[int] = set()
    for _ in range(_MAX_ROUNDS):  # the least fixed point: a part is finite if all parts that it needs are
        before = len(finite)
        for node in nodes:
            if id(node) not in finite and _is_finite(node, schema, finite):
                finite.add(id(node))
        if len(finite) == before:
            break
        nodes.reverse()  # chains of references may lead either way
    else:
        raise UnsupportedSchemaError("the references of the schema are nested too deeply; use fewer definitions")
    if id(schema) not in finite:
        raise UnsupportedSchemaError(
            "the schema requires values without end, because a required part refers to the schema that contains it; make the"
            " part optional, or allow null"
        )


def _nodes(schema: Any) -> Iterator[JsonSchema]:
    """Yield all schemas inside a schema, inner ones first."""
    if not isinstance(schema, dict):
        return
    for key in _MAPS:
        for inner in (schema.get(key) or {}).values():
            yield from _nodes(inner)
    for key in _LISTS:
        for inner in schema.get(key) or ():
            yield from _nodes(inner)
    for key in _SINGLE:
        yield from _nodes(schema.get(key))
    yield schema


def _is_finite(schema: JsonSchema, root: JsonSchema, finite: set[int]) -> bool:
    """Return True if a finite value can satisfy `schema`, given the parts that are known to be finite."""

    def known(part: Any) -> bool:
        if isinstance(part, dict) and part.keys() == {"$ref"}:  # its target may be known before it
            part = _target(part["$ref"], root)
        return not isinstance(part, dict) or id(part) in finite

    if isinstance(schema.get("$ref"), str) and not known(_target(schema["$ref"], root)):
        return False
    if not all(map(known, schema.get("allOf") or ())):
        return False
    if any(schema.get(key) and not any(map(known, schema[key])) for key in ("anyOf", "oneOf")):
        return False
    kinds = schema.get("type")
    if kinds in ("object", ["object"]):
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
        return all(known(properties.get(name, others)) for name in schema.get("required") or ())
    if kinds in ("array", ["array"]):
        first = list(schema.get("prefixItems") or ())
        least = schema.get("minItems")
        needed = int(least) if isinstance(least, int | float) else 0  # the engine refuses other values
        return all(map(known, first[:needed])) and (needed <= len(first) or known(schema.get("items")))
    return True


def _target(reference: str, root: JsonSchema) -> Any:
    """Return the part of the schema to which a reference by JSON pointer leads; None if there is none."""
    found: Any = root
    for part in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict):
            found = found.get(name)
        else:
            return None
    return found
