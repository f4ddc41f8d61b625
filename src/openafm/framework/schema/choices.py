"""The choices of an answer under a JSON Schema: enums of strings at the top level or in objects, but not in arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from openafm.tokenizer.conversation import JsonSchema

_LOCAL = "#/$defs/"
_MOST_DEPTH = 32


def choices_of(schema: JsonSchema) -> dict[str, tuple[str, ...]]:
    """Return the values that each property may have, by its name; by "" those of the whole answer.

    A name with other schemas elsewhere, also inside arrays, is left out: its value would be ambiguous.
    """
    found: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, values in _values(schema, schema, "", 0):
        found[name].append(values)
    return {name: values[0] for name, values in found.items() if len(values) == 1 and len(values[0]) > 1}


def _values(root: JsonSchema, schema: Any, name: str, depth: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each property with its values, none for one that is no choice."""
    schema = _resolved(root, schema)
    if not isinstance(schema, Mapping) or depth > _MOST_DEPTH:
        return
    yield name, _strings(schema)
    for key, value in (schema.get("properties") or {}).items():
        yield from _values(root, value, key, depth + 1)
    for key in ("items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties"):
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else [parts]:
            for inner, _ in _values(root, part, "", depth + 1):
                if inner:
                    yield inner, ()  # may occur several times, or not at all


def _resolved(root: JsonSchema, schema: Any) -> Any:
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if isinstance(reference, str) and reference.startswith(_LOCAL):
        return (root.get("$defs") or {}).get(reference.removeprefix(_LOCAL))
    return schema


def _strings(schema: Mapping[str, Any]) -> tuple[str, ...]:
    values = schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return ()
    return tuple(dict.fromkeys(values))
