"""Keywords that the grammar engine lacks, expressed by those it has. The result allows a subset of the schema's values.

- `oneOf` becomes `anyOf` of branches that exclude each other: proven disjoint, or made so by requiring or forbidding a
  property. A branch that cannot be separated from another one is dropped.
- `not` becomes alternatives for each keyword under it that has a complement.
- `if`/`then`/`else` becomes `if` and `then`, or `not if` and `else`; `dependencies` become alternatives too.
- `uniqueItems` over at most four literals becomes lists in their order.
- Unknown formats are annotations and omitted. References by `$id` or `$anchor` become JSON pointers.

Other keywords are refused, with their JSON path.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openafm.core.errors import UsageError
from openafm.runtime.decoding.schema_facts import KINDS, SchemaFacts, contains
from openafm.tokenizer.conversation import JsonSchema

_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_SCHEMA_LISTS = ("anyOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_NAMED_DEFINITION = re.compile(r"#(?:/(?:\$defs|definitions)/[^/]+)?")
_LOWERED = ("oneOf", "not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "uniqueItems")
_OMITTED = {"$id", "id", "$anchor", "$dynamicAnchor"}
_ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "$schema", "deprecated", "readOnly", "writeOnly"}
_REFUSED = ("propertyNames", "contains", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
_ALL_TYPES = ["null", "boolean", "number", "string", "array", "object"]
_MAX_CHOICES = 6  # alternatives that one schema combines; their product is what the engine compiles
_MAX_UNIQUE = 4
_MAX_TEXT = 60  # characters; the nesting of the expression that excludes a text
_MAX_BRANCHES = 64


class UnsupportedSchemaError(UsageError):
    """A schema cannot be enforced while decoding, or allows no value."""


def lowered_schema(schema: JsonSchema) -> JsonSchema:
    """Return a schema without the keywords that the engine lacks, which allows a subset of the values.

    Raises:
        UnsupportedSchemaError: a keyword or reference has no such form.
    """
    return _Lowering(schema).root()


class _Lowering:
    def __init__(self, schema: JsonSchema) -> None:
        self._schema, self._facts = schema, SchemaFacts(schema)
        self._copies: dict[str, str] = {}  # by pointer: the name of the definition that holds the target's lowered form
        self._pending: list[tuple[str, str]] = []

    def root(self) -> JsonSchema:
        lowered = self._lower(self._schema, "$", KINDS)
        copies: dict[str, Any] = {}
        while self._pending:
            pointer, name = self._pending.pop()
            copies[name] = self._lower(self._facts.target(pointer), pointer, KINDS)
        return lowered | {"$defs": {**lowered.get("$defs", {}), **copies}} if copies else lowered

    def _lower(self, schema: Any, path: str, outer: frozenset[str]) -> Any:
        """Return the lowered form of a subschema. `outer`: the types that its context allows."""
        if not isinstance(schema, Mapping):
            return schema
        for name in _REFUSED:
            if name in schema:
                raise _refusal(f"{path}.{name}", "this keyword cannot be enforced while decoding; remove it")
        lowered = {
            key: value
            for key, value in schema.items()
            if key not in _LOWERED and not (key in _OMITTED and isinstance(value, str))
        }
        if isinstance(schema.get("$ref"), str):
            lowered = {key: value for key, value in lowered.items() if key not in _ANNOTATIONS}
            lowered["$ref"] = self._reference(schema["$ref"], path)
            if self._facts.kinds({"$ref": schema["$ref"]}) <= self._facts.kinds({"type": schema.get("type", _ALL_TYPES)}):
                lowered.pop("type", None)  # redundant; the engine refuses circular references with sibling keywords
        if schema.get("format") not in _FORMATS:
            lowered.pop("format", None)
        kinds = self._facts.kinds(schema) & outer
        for key in _SCHEMAS:
            if key in schema:
                lowered[key] = self._lower_each(schema[key], f"{path}.{key}")
        for key in _SCHEMA_MAPS:
            if isinstance(schema.get(key), Mapping):
                lowered[key] = {
                    name: self._lower(below, f"{path}.{key}.{name}", KINDS) for name, below in schema[key].items()
                }
        for key in _SCHEMA_LISTS:
            if isinstance(schema.get(key), list):
                inner = KINDS if key == "prefixItems" else kinds
                lowered[key] = [self._lower(each, f"{path}.{key}[{i}]", inner) for i, each in enumerate(schema[key])]
        conjuncts = list(self._conjuncts(schema, path, kinds))
        return _with_conjuncts(lowered, conjuncts, path)

    def _lower_each(self, schema: Any, path: str) -> Any:
        if isinstance(schema, list):
            return [self._lower(each, f"{path}[{index}]", KINDS) for index, each in enumerate(schema)]
        return self._lower(schema, path, KINDS)

    def _reference(self, reference: str, path: str) -> str:
        try:
            pointer = self._facts.pointer(reference)
        except LookupError:
            raise _refusal(
                f"{path}.$ref", f"the reference {reference!r} is undefined in the schema; nothing is fetched"
            ) from None
        if _NAMED_DEFINITION.fullmatch(pointer):
            return pointer
        if pointer not in self._copies:
            self._copies[pointer] = f"x-target-{len(self._copies)}"
            self._pending.append((pointer, self._copies[pointer]))
        return f"#/$defs/{self._copies[pointer]}"

    def _conjuncts(self, schema: Mapping[str, Any], path: str, kinds: frozenset[str]) -> Iterable[Any]:
        """Return lowered schemas that replace keywords, all of which a value must match."""
        if isinstance(schema.get("oneOf"), list):
            yield {"anyOf": self._exclusive(schema["oneOf"], schema, f"{path}.oneOf", kinds)}
        if "not" in schema:
            alternatives = self._negated(schema["not"], f"{path}.not", kinds)
            if schema["not"] is True or (isinstance(schema["not"], Mapping) and not schema["not"].keys() - _ANNOTATIONS):
                alternatives = [False]
            if not alternatives:
                raise _refusal(f"{path}.not", "this has no complement in the grammar; list the allowed values")
            yield {"anyOf": [self._lower(each, f"{path}.not", kinds) for each in alternatives]}
        if "if" in schema:
            yield self._conditional(schema, path, kinds)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in schema.get(keyword, {}).items():
                below = {"required": needed} if isinstance(needed, list) else needed
                present = self._lower({"allOf": [{"required": [name]}, below]}, f"{path}.{keyword}.{name}", kinds)
                if name in self._facts.required(schema):
                    yield present
                else:
                    yield {"anyOf": [{"properties": {name: False}}, present]}
        if schema.get("uniqueItems") is True and "array" in kinds:
            yield from self._unique(schema, path, kinds)

    def _exclusive(self, branches: list[Any], outer: Mapping[str, Any], path: str, kinds: frozenset[str]) -> list[Any]:
        """Return branches of which a value matches exactly one, each as narrow as that needs."""
        if len(branches) > _MAX_BRANCHES:
            raise _refusal(path, f"more than {_MAX_BRANCHES} branches; use anyOf")
        context = {
            key: value for key, value in outer.items() if key in ("type", "properties", "required", "patternProperties")
        }
        kept = []
        for index, branch in enumerate(branches):
            others = [other for number, other in enumerate(branches) if number != index]
            separators = [self._separator(branch, other, context, kinds) for other in others]
            if all(separator is not None for separator in separators):
                extras = [separator for separator in separators if separator]
                extras = [each for number, each in enumerate(extras) if each not in extras[:number]]
                narrowed = self._lower(branch, f"{path}[{index}]", kinds)
                kept.append({"allOf": [narrowed, *extras]} if extras else narrowed)
        if not kept:
            raise _refusal(
                path,
                "the branches are not provably exclusive; use anyOf, or a required constant in each branch",
            )
        return kept

    def _separator(self, branch: Any, other: Any, context: Mapping[str, Any], kinds: frozenset[str]) -> JsonSchema | None:
        """Return a schema that keeps `branch` apart from `other`; empty if they are disjoint, None if impossible."""
        whole, rest = {"allOf": [branch, context]}, {"allOf": [other, context]}
        if self._facts.are_disjoint(whole, rest):
            return {}
        common = self._facts.kinds(branch) & self._facts.kinds(other) & kinds
        if common - {"object"}:
            own = (self._facts.kinds(branch) & kinds) - self._facts.kinds(other)
            return {"type": _types_of(own)} if own else None
        required = self._facts.required(whole)
        for name in self._facts.names(other):
            if name in self._facts.required(other) and name not in required:
                return {"type": "object", "properties": {name: False}}
        for name in self._facts.names(branch):
            for one in self._facts.constraints(branch, name):
                if any(self._facts.are_disjoint(one, each) for each in self._facts.constraints(other, name)):
                    return {"type": "object", "required": [name]}
        return None

    def _conditional(self, schema: Mapping[str, Any], path: str, kinds: frozenset[str]) -> JsonSchema:
        condition = schema["if"]
        alternatives: list[Any] = [{"allOf": [condition, schema.get("then", True)]}]
        for negated in self._negated(condition, f"{path}.if", kinds):
            alternatives.append({"allOf": [negated, schema.get("else", True)]})
        return {"anyOf": [self._lower(each, f"{path}.if", kinds) for each in alternatives]}

    def _negated(self, schema: Any, path: str, kinds: frozenset[str], depth: int = 0) -> list[Any]:
        """Return alternatives whose values do not match a schema, unlowered; those that have no form are missing."""
        if isinstance(schema, bool):
            return [] if schema else [True]
        if not isinstance(schema, Mapping) or depth > 4:
            return []
        found: list[Any] = []
        if "type" in schema:
            own = self._facts.kinds({"type": schema["type"]})
            if remaining := kinds - own:
                found.append({"type": _types_of(remaining)})
        if (values := self._facts.literals({k: schema[k] for k in ("enum", "const") if k in schema})) is not None:
            found += _other_values(values, kinds)
        if "object" in kinds:
            for name in schema.get("required", ()):
                found.append({"type": "object", "properties": {name: False}})
            for name, below in schema.get("properties", {}).items():
                for each in self._negated(below, path, KINDS, depth + 1):
                    found.append({"type": "object", "required": [name], "properties": {name: each}})
        if isinstance(schema.get("pattern"), str) and (pattern := _complement_of_class(schema["pattern"])):
            found.append({"type": "string", "pattern": pattern})
        for below in schema.get("allOf", ()):
            found += self._negated(below, path, kinds, depth + 1)
        if isinstance(schema.get("anyOf"), list):
            each = [self._negated(below, path, kinds, depth + 1) for below in schema["anyOf"]]
            if all(each):
                found.append({"allOf": [{"anyOf": alternatives} for alternatives in each]})
        if "not" in schema:
            found.append(schema["not"])
        if isinstance(schema.get("$ref"), str):
            found += self._negated(self._facts.target(self._facts.pointer(schema["$ref"])), path, kinds, depth + 1)
        return found

    def _unique(self, schema: Mapping[str, Any], path: str, kinds: frozenset[str]) -> Iterable[Any]:
        if schema.get("maxItems", math.inf) <= 1:
            return
        items = schema.get("items")
        literals = self._facts.literals(items)
        literals = literals and [each for number, each in enumerate(literals) if not contains(literals[:number], each)]
        if literals is None or len(literals) > _MAX_UNIQUE or "prefixItems" in schema:
            raise _refusal(
                f"{path}.uniqueItems",
                f"unique items cannot be enforced while decoding beyond enums of {_MAX_UNIQUE} values; remove it",
            )
        sizes = range(len(literals) + 1)
        lists = [chosen for size in sizes for chosen in itertools.combinations(literals, size)]
        yield {
            "anyOf": [
                {
                    "type": "array",
                    "prefixItems": [{"const": each} for each in chosen],
                    "items": False,
                    "minItems": len(chosen),
                }
                for chosen in lists
                if schema.get("minItems", 0) <= len(chosen) <= schema.get("maxItems", math.inf)
            ]
        }


def _list_of(values: Sequence[Any]) -> JsonSchema:
    prefix = [{"const": each} for each in values]
    return {"type": "array", "prefixItems": prefix, "items": False, "minItems": len(values)}


def _with_conjuncts(lowered: JsonSchema, conjuncts: list[Any], path: str) -> JsonSchema:
    if not conjuncts:
        return lowered
    if sum("anyOf" in each for each in conjuncts) > _MAX_CHOICES:
        raise _refusal(path, f"more than {_MAX_CHOICES} conditions on one value; split them over nested objects")
    if len(conjuncts) == 1 and "anyOf" in conjuncts[0] and "anyOf" not in lowered:
        return lowered | conjuncts[0]
    return lowered | {"allOf": [*lowered.get("allOf", ()), *conjuncts]}


def _refusal(path: str, message: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(f"{path}: {message}")


def _types_of(kinds: frozenset[str]) -> list[str]:
    """Return the names of types; a fraction alone has none, so that "number" needs both."""
    names = sorted(kinds - {"integer", "fraction"})
    if "fraction" in kinds and "integer" in kinds:
        return [*names, "number"]
    return [*names, "integer"] if "integer" in kinds else names


def _other_values(values: list[Any], kinds: frozenset[str]) -> list[JsonSchema]:
    """Return schemas of values beside the listed ones."""
    found: list[JsonSchema] = []
    texts = [each for each in values if isinstance(each, str)]
    if "string" in kinds and all(len(text) <= _MAX_TEXT for text in texts):
        found.append(_strings_beside(texts))
    if "boolean" in kinds and (booleans := [each for each in (True, False) if not any(each is value for value in values)]):
        found.append({"enum": booleans})
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if {"integer", "fraction"} & kinds:
        number = {"type": "number" if "fraction" in kinds else "integer"}
        bounds = [{"exclusiveMaximum": min(numbers)}, {"exclusiveMinimum": max(numbers)}] if numbers else [{}]
        found += [number | bound for bound in bounds]
    listed = {type(each) for each in values}
    if "null" in kinds and type(None) not in listed:
        found.append({"type": "null"})
    if "array" in kinds and list not in listed:
        found.append({"type": "array"})
    if "object" in kinds and dict not in listed:
        found.append({"type": "object"})
    return found


def _strings_beside(texts: list[str]) -> JsonSchema:
    """Return a schema of the strings that are not listed: those that leave the tree of listed ones."""
    return {"type": "string", "pattern": f"^(?:{_beside(sorted(set(texts)))})$"} if texts else {"type": "string"}


def _beside(texts: list[str]) -> str:
    """Return a regular expression of all strings except `texts`."""
    firsts = {text[0] for text in texts if text}
    ways = [f"[^{''.join(map(_escaped, sorted(firsts)))}](?:.|\\n)*"] if firsts else ["(?:.|\\n)+"]
    if "" not in texts:
        ways.append("")
    for first in sorted(firsts):
        ways.append(f"{_escaped(first)}(?:{_beside([text[1:] for text in texts if text[:1] == first])})")
    return "|".join(ways)


def _escaped(character: str) -> str:
    return f"\\{character}" if character in r"\^$.|?*+()[]{}-&~/" else character


def _complement_of_class(pattern: str) -> str | None:
    """Return a pattern for strings outside of `^[...]+$` or `^[...]*$`; None for other patterns."""
    match = re.fullmatch(r"\^\[(?!\^)((?:[^\[\]\\]|\\.)+)\]([+*])\$", pattern)
    if match is None:
        return None
    return f"^$|[^{match[1]}]" if match[2] == "+" else f"[^{match[1]}]"
