"""The properties that an answer under a JSON Schema has at most once, and which of them are choices or texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openafm.tokenizer.conversation import JsonSchema

_LOCAL = "#/$defs/"
_ONE_OF = ("anyOf", "oneOf")
_CONSTRAINTS = frozenset({"enum", "const", "pattern", "format", "minLength", "maxLength"})
_MOST_NODES = 5_000  # of a schema; larger ones are not searched


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
        return any(_is_string(each) and not {"enum", "const"} & each.keys() for each in self._options)

    @property
    def is_free_text(self) -> bool:
        """Whether the value may be any string."""
        return any(_is_string(each) and not _CONSTRAINTS & each.keys() for each in self._options)

    @property
    def _options(self) -> list[Mapping[str, Any]]:
        options = self.schema.get("anyOf")
        return [self.schema, *(each for each in (options if isinstance(options, list) else ()) if isinstance(each, Mapping))]


def single_properties(schema: JsonSchema) -> list[SingleProperty]:
    """Return the properties in the order of the schema.

    A name that occurs twice is left out, and a definition that is used twice is not followed, so that loops end.
    """
    nodes = list(_nodes(schema))
    if len(nodes) > _MOST_NODES or any("patternProperties" in node for node in nodes):
        return []
    names = Counter(name for node in nodes for name in _properties_of(node))
    uses = Counter(reference for node in nodes if isinstance(reference := node.get("$ref"), str))
    found = list(_single(schema, schema, (), uses))
    return [each for each in found if not each.path or names[each.name] == 1]


def choices_of(schema: JsonSchema) -> dict[str, tuple[str, ...]]:
    """Return the two or more values that a property may have, by its name; by "" those of the whole answer."""
    return {each.name: each.choices for each in single_properties(schema) if len(each.choices) > 1}


def title_of(schema: JsonSchema) -> str:
    """Return the title of a schema, or that of its object where it is an object or null; empty without one."""
    titles = (each.get("title") for each in (schema, *_branches(schema, schema, None)))
    return next((title for title in titles if isinstance(title, str) and title), "")


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a schema, at most a few more than are searched."""
    queue, count = [value], 0
    while queue and count <= _MOST_NODES:
        each = queue.pop()
        if isinstance(each, Mapping):
            count += 1
            yield each
            queue.extend(each.values())
        elif isinstance(each, list):
            queue.extend(each)


def _single(root: JsonSchema, schema: Any, path: tuple[str, ...], uses: Mapping[str, int]) -> Iterator[SingleProperty]:
    schema = _resolved(root, schema, uses)
    if not isinstance(schema, Mapping):
        return
    yield SingleProperty(path, schema)
    # An object or null has the properties of the object.
    objects = [each for each in _branches(root, schema, uses) if _properties_of(each)]
    for each in (schema, *(objects if len(objects) == 1 else ())):
        for name, value in _properties_of(each).items():
            yield from _single(root, value, (*path, name), uses)


def _branches(root: JsonSchema, schema: Mapping[str, Any], uses: Mapping[str, int] | None) -> list[Mapping[str, Any]]:
    parts = [part for key in _ONE_OF if isinstance(schema.get(key), list) for part in schema[key]]
    return [each for part in parts if isinstance(each := _resolved(root, part, uses), Mapping)]


def _properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _resolved(root: JsonSchema, schema: Any, uses: Mapping[str, int] | None) -> Any:
    """Return the definition that a schema refers to, None if it is used elsewhere too."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if reference is None:
        return schema
    if not isinstance(reference, str) or not reference.startswith(_LOCAL) or (uses is not None and uses[reference] > 1):
        return None
    definitions = root.get("$defs")
    found = definitions.get(reference.removeprefix(_LOCAL)) if isinstance(definitions, Mapping) else None
    return None if isinstance(found, Mapping) and "$ref" in found else found


def _is_string(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)
