"""Facts about JSON Schemas: types, literals, required properties, and proofs that two schemas share no value."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

KINDS = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
_MAX_STEPS = 60_000  # of all proofs for one schema; further ones fail
_MAX_DEPTH = 8  # of references and combinations that a proof follows


class SchemaFacts:
    """Answer questions about the subschemas of one schema. Every answer is conservative."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._targets = dict(_named(root, "#"))
        # By the ids of schemas, which the values keep alive.
        self._kinds: dict[int, tuple[Any, frozenset[str]]] = {}
        self._disjoint: dict[tuple[int, int], tuple[Any, Any, bool]] = {}
        self._parts: dict[int, tuple[Any, list[Any]]] = {}
        self._steps_left = _MAX_STEPS

    def pointer(self, reference: str) -> str:
        """Return the JSON pointer of a reference by pointer, `$id`, `id` or `$anchor`.

        Raises:
            LookupError: the reference is undefined in the schema.
        """
        if reference in self._targets:
            return self._targets[reference]
        base, hash_sign, fragment = reference.partition("#")
        start = "#" if not base else self._targets.get(base) or self._targets[f"{base}#"]
        if fragment and not fragment.startswith("/"):
            return self._targets[f"#{fragment}"]
        pointer = start + fragment if hash_sign else start
        self.target(pointer)
        return pointer

    def target(self, pointer: str) -> Any:
        """Return the subschema at a JSON pointer.

        Raises:
            LookupError: the pointer leads nowhere.
        """
        target = self._root
        for step in pointer.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key)] if isinstance(target, list) else target[key]
            except (IndexError, KeyError, TypeError, ValueError):
                raise KeyError(pointer) from None
        return target

    def kinds(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """Return the JSON types that a value may have; "number" covers integers and fractions."""
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return KINDS
        if id(schema) not in self._kinds:
            self._kinds[id(schema)] = schema, self._compute_kinds(schema, depth)
        return self._kinds[id(schema)][1]

    def _compute_kinds(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        kinds = KINDS
        if "type" in schema:
            types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            kinds &= frozenset(kind for each in types for kind in (("integer", "fraction") if each == "number" else (each,)))
        if (literals := _own_literals(schema)) is not None:
            kinds &= frozenset(map(_kind, literals))
        for below in self._conjuncts(schema):
            kinds &= self.kinds(below, depth + 1)
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list):
                kinds &= frozenset[str]().union(*(self.kinds(below, depth + 1) for below in schema[name]))
        return kinds

    def required(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """Return properties that every object value has."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return frozenset()
        required = frozenset(name for name in schema.get("required", ()) if isinstance(name, str))
        return required.union(*(self.required(below, depth + 1) for below in self._conjuncts(schema)))

    def constraints(self, schema: Any, name: str, depth: int = 0) -> list[Any]:
        """Return schemas that a property must match wherever it is present."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return []
        found = []
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        if name in properties:
            found.append(properties[name])
        found += [below for pattern, below in patterns.items() if name in _names_of(pattern)]
        if not found and not patterns and "additionalProperties" in schema:
            found.append(schema["additionalProperties"])
        for below in self._conjuncts(schema):
            found += self.constraints(below, name, depth + 1)
        return found

    def names(self, schema: Any, depth: int = 0) -> list[str]:
        """Return the declared and required properties, in order."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return []
        names = [*schema.get("properties", {}), *schema.get("required", ())]
        for below in self._conjuncts(schema):
            names += self.names(below, depth + 1)
        return list(dict.fromkeys(names))

    def literals(self, schema: Any, depth: int = 0) -> list[Any] | None:
        """Return all values that a schema may allow; None if it does not list them."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return None
        if (literals := _own_literals(schema)) is not None:
            return literals
        found = (self.literals(below, depth + 1) for below in self._conjuncts(schema))
        return next((literals for literals in found if literals is not None), None)

    def are_disjoint(self, first: Any, second: Any, depth: int = 0) -> bool:
        """Return True if provably no value matches both schemas."""
        self._steps_left -= 1
        if self._steps_left < 0:
            return False
        key = (id(first), id(second))
        if key not in self._disjoint:
            self._disjoint[key] = first, second, self._prove_disjoint(first, second, depth)
        return self._disjoint[key][2]

    def _prove_disjoint(self, first: Any, second: Any, depth: int) -> bool:
        common = self.kinds(first) & self.kinds(second)
        if not common:
            return True
        if depth > _MAX_DEPTH:
            return False
        first_literals, second_literals = self.literals(first), self.literals(second)
        if first_literals is not None and second_literals is not None:
            return not any(contains(first_literals, each) for each in second_literals)
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Mapping):
                if any(self.are_disjoint(below, other, depth + 1) for below in self._conjuncts(one)):
                    return True
                for name in ("anyOf", "oneOf"):
                    branches = one.get(name)
                    if branches and all(self.are_disjoint(below, other, depth + 1) for below in branches):
                        return True
        return common == {"object"} and self._have_disjoint_property(first, second, depth)

    def _have_disjoint_property(self, first: Any, second: Any, depth: int) -> bool:
        for name in self.required(first) | self.required(second):
            for one in self.constraints(first, name) or [True]:
                for other in self.constraints(second, name) or [True]:
                    if self.are_disjoint(one, other, depth + 1):
                        return True
        return False

    def _conjuncts(self, schema: Mapping[str, Any]) -> list[Any]:
        """Return the schemas that a value must match besides the keywords of this one."""
        if "$ref" not in schema and "allOf" not in schema:
            return []
        if id(schema) not in self._parts:
            self._parts[id(schema)] = schema, list(self._compute_conjuncts(schema))
        return self._parts[id(schema)][1]

    def _compute_conjuncts(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        if isinstance(schema.get("$ref"), str):
            with contextlib.suppress(LookupError):  # undefined references are refused elsewhere
                yield self.target(self.pointer(schema["$ref"]))
        if isinstance(schema.get("allOf"), list):
            yield from schema["allOf"]


def _named(node: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """Return references by name (`$id`, `id`, `$anchor`) and their JSON pointers."""
    if isinstance(node, list):
        for index, below in enumerate(node):
            yield from _named(below, f"{pointer}/{index}")
    if not isinstance(node, Mapping):
        return
    for key in ("$id", "id"):
        if isinstance(node.get(key), str):
            yield node[key], pointer
    if isinstance(node.get("$anchor"), str):
        yield f"#{node['$anchor']}", pointer
    for key, below in node.items():
        if key not in ("enum", "const", "default", "examples"):
            yield from _named(below, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")


def _own_literals(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def contains(values: Sequence[Any], value: Any) -> bool:
    """Check whether JSON values include one: 1 equals 1.0, but not true."""
    return any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in values)


def _names_of(pattern: str) -> list[str]:
    """Return the names that a pattern of literal names matches, such as `^(a|b)$`."""
    match = re.fullmatch(r"\^\(?([\w|]+)\)?\$", pattern)
    return match[1].split("|") if match else []
