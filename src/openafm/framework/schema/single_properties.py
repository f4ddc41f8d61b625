"""The properties that an answer under a JSON Schema has at most once, and which of them are choices or texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from openafm.tokenizer.conversation import JsonSchema

_LOCAL = "#/$defs/"
_MOST_DEPTH = 32
_ONE_OF = ("anyOf", "oneOf")
_SEVERAL = ("items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties")

_Found: TypeAlias = tuple[tuple[str, ...], Mapping[str, Any] | None]


@dataclass(frozen=True)
class SingleProperty:
    """A property in objects that are in no array. The whole answer has no name and an empty path."""

    path: tuple[str, ...]
    schema: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of an enum of strings, else nothing."""
        values = self.schema.get("enum")
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            return ()
        return tuple(dict.fromkeys(values))

    @property
    def is_text(self) -> bool:
        """Whether the value may be a string that the schema does not list."""
        options = [self.schema, *(each for each in self.schema.get("anyOf") or () if isinstance(each, Mapping))]
        kinds = [each.get("type") for each in options if not {"enum", "const"} & each.keys()]
        return any(kind == "string" or (isinstance(kind, list) and "string" in kind) for kind in kinds)


def single_properties(schema: JsonSchema) -> list[SingleProperty]:
    """Return the properties in the order of the schema. A name that another property has too is left out."""
    found = list(_properties(schema, schema, (), 0))
    counts = Counter(path[-1] if path else "" for path, _ in found)
    return [SingleProperty(path, each) for path, each in found if each is not None and counts[path[-1] if path else ""] == 1]


def choices_of(schema: JsonSchema) -> dict[str, tuple[str, ...]]:
    """Return the two or more values that a property may have, by its name; by "" those of the whole answer."""
    return {each.name: each.choices for each in single_properties(schema) if len(each.choices) > 1}


def title_of(schema: JsonSchema) -> str:
    """Return the title of a schema, or that of its object where it is an object or null; empty without one."""
    branches = [_resolved(schema, branch) for key in _ONE_OF for branch in schema.get(key) or ()]
    titles = (each.get("title") for each in (schema, *branches) if isinstance(each, Mapping))
    return next((str(title) for title in titles if title), "")


def _properties(root: JsonSchema, schema: Any, path: tuple[str, ...], depth: int) -> Iterator[_Found]:
    """Yield a property and those in it; with None those that may occur several times, or not at all."""
    schema = _resolved(root, schema)
    if isinstance(schema, Mapping) and depth <= _MOST_DEPTH:
        yield path, schema
        yield from _inside(root, schema, path, depth)


def _inside(root: JsonSchema, schema: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[_Found]:
    for key, value in (schema.get("properties") or {}).items():
        yield from _properties(root, value, (*path, key), depth + 1)
    for key in _SEVERAL:
        parts = schema.get(key)
        found = [_resolved(root, part) for part in (parts if isinstance(parts, list) else [parts])]
        objects = [part for part in found if isinstance(part, Mapping) and part.get("properties")]
        if key in _ONE_OF and len(objects) == 1 and depth <= _MOST_DEPTH:  # such as an object or null
            yield from _inside(root, objects[0], path, depth + 1)
            continue
        for part in found:
            for inner, _ in _properties(root, part, (), depth + 1):
                if inner:
                    yield inner, None


def _resolved(root: JsonSchema, schema: Any) -> Any:
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if isinstance(reference, str) and reference.startswith(_LOCAL):
        return (root.get("$defs") or {}).get(reference.removeprefix(_LOCAL))
    return schema
