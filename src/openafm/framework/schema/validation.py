"""Validation of JSON values against JSON Schema (draft 2020-12) with bounded work and without any network access.

Schemas may come from an MCP server and values from an endpoint, so neither is trusted. References resolve inside the schema
only. Results are memoized by schema and value, which makes nested `anyOf` polynomial; patterns match in linear time
(`linear_regex.py`); a budget limits the total. Annotations and unknown keywords are ignored, as is `format`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from openafm.framework.errors import InvalidGenerationSchemaError, SchemaFormatError, UnsupportedGuideError
from openafm.framework.schema.linear_regex import WorkBudget, linear_regex
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_keywords import keyword_problem, subschemas
from openafm.tokenizer.schema_text import compact_json

_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")  # apply to the value itself
_REFUSED = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")


class Validator:
    """Validate values against one schema, which is checked at construction.

    Raises:
        SchemaFormatError: a keyword has an invalid value.
        InvalidGenerationSchemaError: a reference is undefined, dynamic, circular or leads outside the schema.
        UnsupportedGuideError: a keyword or pattern cannot be validated.
    """

    def __init__(self, schema: JsonSchema | bool) -> None:
        self.root = schema
        self._checked: set[int] = set()
        try:
            self._check(schema, "$", has_identifier=False)
            self._check_cycles(schema, set(), set())
        except RecursionError as error:
            raise SchemaFormatError("incorrect schema format: nested deeper than Python's recursion limit") from error

    def validation(self) -> Validation:
        """Return a validation with its own memo and budget."""
        return Validation(self)

    def resolve(self, reference: str) -> Any:
        """Return the subschema of a checked reference."""
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(f"outside the schema: {reference}")
        target: Any = self.root
        for step in reference.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            target = target[int(key)] if isinstance(target, list) else target[key]
        return target

    def _check(self, schema: Any, path: str, has_identifier: bool) -> None:
        if isinstance(schema, bool) or id(schema) in self._checked:
            return
        if not isinstance(schema, Mapping):
            raise _malformed(path, f"a schema is an object or a boolean, got {schema!r:.100}")
        has_identifier = has_identifier or (path != "$" and isinstance(schema.get("$id"), str))
        if has_identifier and "$ref" in schema:  # a nested identifier changes the base of references
            raise InvalidGenerationSchemaError(
                f"{path}.$ref: a reference below a nested $id is not supported; remove the $id"
            )
        for name in _REFUSED:
            if name in schema:
                raise UnsupportedGuideError(f"{path}.{name}: this keyword is not supported; remove it")
        _check_keywords(schema, path)
        self._checked.add(id(schema))
        self._check_reference(schema, path)
        for _, location, below in subschemas(schema):
            self._check(below, f"{path}.{location}", has_identifier)

    def _check_reference(self, schema: Mapping[str, Any], path: str) -> None:
        reference = schema.get("$ref")
        if reference is None:
            return
        if not isinstance(reference, str):
            raise _malformed(f"{path}.$ref", f"a reference is a string, got {reference!r:.100}")
        try:
            target = self.resolve(reference)
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidGenerationSchemaError(
                f"{path}.$ref: the reference {reference!r} is undefined in the schema;"
                " only references of the form '#/...' are resolved, nothing is fetched"
            ) from error
        self._check(target, reference, has_identifier=False)

    def _check_cycles(self, schema: Any, active: set[int], done: set[int]) -> None:
        """Raise for references that apply a schema to the same value again without end."""
        if not isinstance(schema, Mapping) or id(schema) in done:
            return
        if id(schema) in active:
            raise InvalidGenerationSchemaError("a reference of the schema leads back to itself; remove the cycle")
        active.add(id(schema))
        if "$ref" in schema:
            self._check_cycles(self.resolve(schema["$ref"]), active, done)
        for keyword, _, below in subschemas(schema):
            if keyword in _IN_PLACE:
                self._check_cycles(below, active, done)
        active.discard(id(schema))
        done.add(id(schema))
        for _, _, below in subschemas(schema):
            self._check_cycles(below, set(), done)


class Validation:
    """Validate values with one memo and one budget, shared by all calls."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._budget = WorkBudget()
        self._memo: dict[tuple[int, int], tuple[Any, str | None]] = {}  # holds the value, so that its id stays unique

    def problem(self, value: Any) -> str | None:
        """Return the first violation of the root schema, with its JSON path; None for a valid value.

        Raises:
            DecodingFailureError: the budget is exceeded.
        """
        problem = self._problem(value, self._validator.root)
        return None if problem is None else f"${problem}"

    def is_valid(self, value: Any, schema: Any) -> bool:
        """Check a value against a subschema.

        Raises:
            DecodingFailureError: the budget is exceeded.
        """
        return self._problem(value, schema) is None

    def _problem(self, value: Any, schema: Any) -> str | None:
        """Return the first violation, with its path relative to the value."""
        if isinstance(schema, bool):
            return None if schema else ": no value is allowed"
        key = (id(schema), id(value))
        if key not in self._memo:
            self._budget.spend(1 + len(schema))
            self._memo[key] = value, next(self._problems(value, schema), None)
        return self._memo[key][1]

    def _problems(self, value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
        if "$ref" in schema and (problem := self._problem(value, self._validator.resolve(schema["$ref"]))):
            yield problem
        if "type" in schema:
            types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            if not any(_has_type(value, each) for each in types):
                yield f": expected {' or '.join(types)}, got {_short(value)}"
        if "const" in schema and not self._equal(value, schema["const"]):
            yield f": expected {_short(schema['const'])}, got {_short(value)}"
        if "enum" in schema and not any(self._equal(value, each) for each in schema["enum"]):
            yield f": {_short(value)} is not one of {schema['enum']!r:.200}"
        yield from self._combination_problems(value, schema)
        if isinstance(value, str):
            yield from self._string_problems(value, schema)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from _number_problems(value, schema)
        elif isinstance(value, list):
            yield from self._array_problems(value, schema)
        elif isinstance(value, dict):
            yield from self._object_problems(value, schema)

    def _combination_problems(self, value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
        for below in schema.get("allOf", ()):
            if problem := self._problem(value, below):
                yield problem
        for name in ("anyOf", "oneOf"):
            if name not in schema:
                continue
            problems = [self._problem(value, below) for below in schema[name]]
            num_valid = problems.count(None)
            if not num_valid:
                yield f": {_short(value)} matches no alternative of {name}"
            elif name == "oneOf" and num_valid > 1:
                yield f": {_short(value)} matches {num_valid} alternatives of oneOf instead of one"
        if "not" in schema and self._problem(value, schema["not"]) is None:
            yield f": {_short(value)} matches the schema under 'not'"
        if "if" in schema:
            branch = "then" if self._problem(value, schema["if"]) is None else "else"
            if problem := self._problem(value, schema.get(branch, True)):
                yield problem

    def _string_problems(self, value: str, schema: Mapping[str, Any]) -> Iterator[str]:
        yield from _size_problems(len(value), schema, "Length", "characters")
        if "pattern" in schema and not linear_regex(schema["pattern"]).search(value, self._budget):
            yield f": {_short(value)} does not match {schema['pattern']!r:.100}"

    def _array_problems(self, value: list[Any], schema: Mapping[str, Any]) -> Iterator[str]:
        yield from _size_problems(len(value), schema, "Items", "items")
        prefix, rest = schema.get("prefixItems", ()), schema.get("items", True)
        for index, item in enumerate(value):
            if problem := self._problem(item, prefix[index] if index < len(prefix) else rest):
                yield f"[{index}]{problem}"
        if "contains" in schema:
            num_matching = sum(self._problem(item, schema["contains"]) is None for item in value)
            least, most = schema.get("minContains", 1), schema.get("maxContains", math.inf)
            if not least <= num_matching <= most:
                yield f": {num_matching} items match 'contains', expected {least} to {most}"
        if schema.get("uniqueItems") is True:
            canonical = [_canonical(item) for item in value]
            self._budget.spend(sum(map(len, canonical)) // 10)
            if len(set(canonical)) < len(value):
                yield ": the items are not unique"

    def _object_problems(self, value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
        yield from _size_problems(len(value), schema, "Properties", "properties")
        for name in schema.get("required", ()):
            if name not in value:
                yield f": {name!r:.100} is a required property"
        for name, names in schema.get("dependentRequired", {}).items():
            for missing in names if name in value else ():
                if missing not in value:
                    yield f": {missing!r:.100} is required together with {name!r:.100}"
        for name, below in schema.get("dependentSchemas", {}).items():
            if name in value and (problem := self._problem(value, below)):
                yield problem
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            if "propertyNames" in schema and (problem := self._problem(name, schema["propertyNames"])):
                yield problem
            applied = [properties[name]] if name in properties else []
            applied += [patterns[each] for each in patterns if linear_regex(each).search(name, self._budget)]
            if not applied and schema.get("additionalProperties") is False:
                yield f": the property {name!r:.100} is not allowed"
            for below in applied or [schema.get("additionalProperties", True)]:
                if problem := self._problem(item, below):
                    yield f".{name}{problem}"

    def _equal(self, value: Any, literal: Any) -> bool:
        """Compare JSON values: 1 equals 1.0, but not true."""
        self._budget.spend(1)
        if isinstance(value, bool) or isinstance(literal, bool):
            return value is literal
        if isinstance(value, dict) and isinstance(literal, dict):
            return value.keys() == literal.keys() and all(self._equal(value[name], literal[name]) for name in value)
        if isinstance(value, list) and isinstance(literal, list):
            return len(value) == len(literal) and all(map(self._equal, value, literal))
        return bool(value == literal)


def _check_keywords(schema: Mapping[str, Any], path: str) -> None:
    if problem := keyword_problem(schema):
        raise _malformed(f"{path}.{problem[0]}", problem[1])
    for pattern in [*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())]:
        linear_regex(pattern)  # raises for patterns that cannot be checked


def _malformed(path: str, message: str) -> SchemaFormatError:
    return SchemaFormatError(f"incorrect schema format: {path}: {message}")


def _has_type(value: Any, expected: str) -> bool:
    match expected:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return expected == "number" or isinstance(value, int) or value.is_integer()


def _number_problems(value: float, schema: Mapping[str, Any]) -> Iterator[str]:
    if "minimum" in schema and value < schema["minimum"]:
        yield f": {value} is less than the minimum {schema['minimum']}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f": {value} is greater than the maximum {schema['maximum']}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f": {value} is not greater than {schema['exclusiveMinimum']}"
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        yield f": {value} is not less than {schema['exclusiveMaximum']}"
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield f": {value} is not a multiple of {schema['multipleOf']}"


def _is_multiple(value: float, step: float) -> bool:
    """Compare the decimal values, which floating-point division would miss (0.3 is a multiple of 0.1)."""
    return (Fraction(repr(value)) / Fraction(repr(step))).denominator == 1


def _size_problems(size: int, schema: Mapping[str, Any], suffix: str, noun: str) -> Iterator[str]:
    least, most = schema.get(f"min{suffix}", 0), schema.get(f"max{suffix}", math.inf)
    if not least <= size <= most:
        yield f": {size} {noun}, expected {least} to {most}"


def _canonical(value: Any) -> str:
    """Return text that is equal for equal JSON values."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{compact_json(name)}:{_canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return compact_json(value)


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(value[:100] if isinstance(value, str) else value)
