"""JSON Schemas rewritten for the grammar engine, so that it enforces the semantics of JSON Schema and Python.

- Keywords that the engine lacks are lowered (`schema_lowering.py`).
- Properties have the order of `x-order`, which is the order of generation.
- Numbers are within ±1e18, without exponent, and have at most nine decimals unless bounds have more. So every number is
  finite. The same holds at any depth where any value is allowed; in schemas with intersections, which the engine cannot
  compile for recursive schemas, such values have at most three levels of nesting.
- Dates exist: years from 0001, 29 February in leap years only; seconds up to 59, as in Python.
- Addresses (`uri`) are those of pages: http or https, a host that all parsers accept, a port of up to four digits.
- `minProperties` above 1 with arbitrary names is refused: the engine does not detect repeated names.
"""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, TypeGuard

from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError, lowered_schema
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_keywords import explained
from openafm.tokenizer.schema_text import ordered_properties

LARGEST_NUMBER = 10**18
FINEST_FRACTION = 1e-9

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = "(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = (
    f"(?:{_LEAP_YEAR}-02-29|{_YEAR}-02-{_DAY}|{_YEAR}-(?:0[469]|11)-(?:{_DAY}|29|30)"
    f"|{_YEAR}-(?:0[13578]|1[02])-(?:{_DAY}|29|3[01]))"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_LABEL = "[a-z0-9]+(?:-[a-z0-9]+){0,4}"  # no `--`, which begins encoded names
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST = rf"(?:localhost|(?:{_LABEL}\.){{1,6}}[a-z]{{2,12}}|{_OCTET}(?:\.{_OCTET}){{3}})"
_PORT = "(?::[1-9][0-9]{0,3})?"
_CHARACTER = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})"
_URL = rf"https?://{_HOST}{_PORT}(?:/{_CHARACTER}*)?(?:\?(?:{_CHARACTER}|\?)*)?(?:#(?:{_CHARACTER}|\?)*)?"
FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": f"^{_UUID}$",
    "uri": f"^{_URL}$",
}
"""Patterns of formats: each accepts a subset of the format that Python can parse."""

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")
_TYPED_BY = {"type", "const", "enum", "$ref", "anyOf", "allOf"}
_ANNOTATIONS = {"title", "description", "default", "examples"}
_LEAF_KEYS = {"type", "minimum", "maximum", "pattern", "minLength", "maxLength", "allOf"}
_ALL_TYPES = ["null", "boolean", "number", "string", "array", "object"]
_FINEST = Decimal("1e-22")
_ANY = "x-any-json"
_ANY_REFERENCE = {"$ref": f"#/$defs/{_ANY}"}
_MAX_ANY_DEPTH = 3
_INTERSECTED = {"type", "properties", "patternProperties", "additionalProperties", "items", "prefixItems", "allOf"}


def enforceable_schema(schema: JsonSchema | bool) -> JsonSchema:
    """Return the schema to compile a grammar from. It allows a subset of the values; `schema` is unchanged.

    Raises:
        UnsupportedSchemaError: a keyword cannot be enforced, no value is allowed, or the schema is malformed.
    """
    if schema is False:
        raise UnsupportedSchemaError("the schema `false` allows no value")
    try:
        lowered = schema if schema is True else lowered_schema(schema)
        leaves = _SharedLeaves()
        rewritten = dict(leaves.below(_value(lowered, whole=True)))
        any_json = _any_definitions(None if not _has_intersection(lowered) else _MAX_ANY_DEPTH)
        return rewritten | {"$defs": {**rewritten.get("$defs", {}), **leaves.definitions, **any_json}}
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UnsupportedSchemaError(f"the schema is malformed ({explained(schema, error)}): {schema!r:.300}") from error


def _any_definitions(depth: int | None) -> JsonSchema:
    """Return definitions of any JSON value, of unlimited depth or of at most `depth` levels."""
    scalars = {"minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER, "multipleOf": FINEST_FRACTION}
    if depth is None:
        nested = {"items": _ANY_REFERENCE, "additionalProperties": _ANY_REFERENCE}
        return {_ANY: {"type": _ALL_TYPES, **scalars, **nested}}
    definitions: JsonSchema = {f"{_ANY}-0": {"type": _ALL_TYPES[:4], **scalars}}
    for level in range(1, depth + 1):
        below = {"$ref": f"#/$defs/{_ANY}-{level - 1}"}
        name = f"{_ANY}-{level}" if level < depth else _ANY
        definitions[name] = {"type": _ALL_TYPES, **scalars, "items": below, "additionalProperties": below}
    return definitions


def _has_intersection(schema: Any) -> bool:
    """Check whether a value must match several schemas at once somewhere."""
    if not isinstance(schema, dict):
        return False
    if "allOf" in schema or (schema.keys() & {"anyOf", "$ref"} and schema.keys() & _INTERSECTED):
        return True
    if len(schema.get("patternProperties", ())) + ("properties" in schema) > 1 and "patternProperties" in schema:
        return True
    below = [schema.get(key) for key in _SCHEMAS]
    below += [each for key in _SCHEMA_LISTS for each in schema.get(key, ())]
    below += [each for key in _SCHEMAS_BY_NAME for each in schema.get(key, {}).values()]
    return any(map(_has_intersection, below))


def needs_unicode_escapes(schema: JsonSchema | bool) -> bool:
    """Check whether a literal of the schema needs an escape such as `\\u0001`."""
    return re.search(r"\\u00[01]|\x7f", json.dumps(schema, ensure_ascii=False)) is not None


def _value(schema: Any, *, whole: bool) -> Any:
    """Return the rewritten schema. `whole`: no other schema restricts the value."""
    if isinstance(schema, dict):
        return _object(schema, whole)
    return _ANY_REFERENCE if schema is True and whole else schema


def _object(schema: JsonSchema, whole: bool) -> JsonSchema:
    rewritten = {key: value for key, value in schema.items() if key != "x-guidance"}
    for key in _SCHEMAS_BY_NAME:
        if isinstance(schema.get(key), dict):
            rewritten[key] = {name: _value(below, whole=True) for name, below in schema[key].items()}
    alone = whole and not schema.keys() & {"type", "properties", "items", "allOf"}
    for key in _SCHEMA_LISTS:
        if isinstance(schema.get(key), list):
            below_is_whole = key == "prefixItems" or (alone and key != "allOf")
            rewritten[key] = [_value(below, whole=below_is_whole) for below in schema[key]]
    for key in _SCHEMAS:
        if key in schema:
            rewritten[key] = _value(schema[key], whole=True)
    if isinstance(schema.get("properties"), dict):
        rewritten["properties"] = {name: rewritten["properties"][name] for name in ordered_properties(schema)}
    if whole and not schema.keys() & _TYPED_BY:
        rewritten["type"] = _ALL_TYPES
    _check_names(rewritten)
    _check_literals([schema[key] for key in ("enum", "const") if key in schema])
    return _with_exact_format(_with_bounds(rewritten | _open_ends(rewritten, whole)))


def _open_ends(schema: JsonSchema, whole: bool) -> JsonSchema:
    """Return any JSON for items and further properties that the schema leaves open."""
    types, ends = _types(schema), {}
    if whole and "array" in types and "items" not in schema:
        ends["items"] = _ANY_REFERENCE
    if whole and "object" in types and "additionalProperties" not in schema:
        ends["additionalProperties"] = _ANY_REFERENCE
    return ends


def _with_bounds(schema: JsonSchema) -> JsonSchema:
    """Return the schema with bounds that the engine parses exactly, at most as wide as those of `schema`.

    Exclusive bounds become inclusive: the engine accepts an excluded bound if both bounds have the same integer part.
    """
    types = _types(schema) & {"integer", "number"}
    if not types:
        return schema
    at_most, below = (_greatest_double, _integer_below) if types == {"integer"} else (_greatest_decimal, _decimal_below)
    leasts = [-at_most(-max(schema.get("minimum", -LARGEST_NUMBER), -LARGEST_NUMBER))]
    greatests = [at_most(min(schema.get("maximum", LARGEST_NUMBER), LARGEST_NUMBER))]
    bounded = dict(schema)
    if _is_number(schema.get("exclusiveMinimum")):
        leasts.append(-below(-bounded.pop("exclusiveMinimum")))
    if _is_number(schema.get("exclusiveMaximum")):
        greatests.append(below(bounded.pop("exclusiveMaximum")))
    least, greatest = max(leasts), min(greatests)
    bounded |= {"minimum": least, "maximum": greatest}
    is_narrow = least == greatest or not (_is_coarse(least) and _is_coarse(greatest))
    if types == {"integer"} or "multipleOf" in schema or is_narrow:
        return bounded
    return bounded | {"multipleOf": FINEST_FRACTION}


def _is_coarse(bound: float) -> bool:
    return _exact(bound) % _exact(FINEST_FRACTION) == 0


def _greatest_double(bound: float) -> float:
    """Return the greatest double at most `bound`. The engine parses bounds of integers as doubles."""
    double = float(bound)
    if double > bound:
        double = math.nextafter(double, -math.inf)
    return int(double) if double.is_integer() else double


def _integer_below(bound: float) -> float:
    """Return the greatest integer below `bound` that the engine parses exactly."""
    return _greatest_double(math.ceil(bound) - 1)


def _greatest_decimal(bound: float) -> float:
    """Return the greatest number at most `bound` that the engine parses exactly, as an integer where it is one.

    Its parser is exact up to 15 digits and 22 decimals; beyond, it may be off by one double.
    """
    return _read_exactly(Context(prec=15, rounding=ROUND_FLOOR).create_decimal(_exact(bound)))


def _decimal_below(bound: float) -> float:
    """Return the greatest such number below `bound`."""
    context = Context(prec=15, rounding=ROUND_FLOOR)
    digits = context.create_decimal(_exact(bound))
    return _read_exactly(digits if digits < _exact(bound) else context.next_minus(digits))


def _read_exactly(digits: Decimal) -> float:
    if abs(digits) < 1:
        digits = digits.quantize(_FINEST, ROUND_FLOOR)
    return int(digits) if digits == digits.to_integral_value() else float(digits)


def _exact(bound: float) -> Decimal:
    return Decimal(int(bound)) if bound == int(bound) else Decimal(repr(bound))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _with_exact_format(schema: JsonSchema) -> JsonSchema:
    pattern = FORMATS.get(schema.get("format", ""))
    is_other_address = schema.get("format") == "uri" and "pattern" in schema  # such as ^mailto:
    if pattern is None or is_other_address or "string" not in _types(schema):
        return schema
    without = {key: value for key, value in schema.items() if key != "format"}
    return without | {"allOf": [*schema.get("allOf", ()), {"pattern": pattern}]}


def _check_names(schema: JsonSchema) -> None:
    open_names = "patternProperties" in schema or schema.get("additionalProperties", True) is not False
    if "object" in _types(schema) and open_names and schema.get("minProperties", 0) > 1:
        raise UnsupportedSchemaError(
            "minProperties above 1 cannot be enforced with arbitrary names, since a name may repeat;"
            " name the properties or set additionalProperties to false"
        )


def _check_literals(value: Any) -> None:
    """Raise for literal numbers that the engine would write differently."""
    if isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            _check_literals(below)
    elif isinstance(value, float) and _greatest_decimal(value) != value:
        raise UnsupportedSchemaError(f"the number {value!r} has more digits than can be enforced; use at most 15")


def _types(schema: JsonSchema) -> set[str]:
    """Return the declared types; none for literals."""
    types = schema.get("type", ())
    if schema.keys() & {"enum", "const"}:
        return set()
    return {types} if isinstance(types, str) else set(types)


class _SharedLeaves:
    """Move bounded numbers and strings with a pattern to definitions, so that the engine compiles equal ones once."""

    def __init__(self) -> None:
        self.definitions: dict[str, JsonSchema] = {}
        self._references: dict[str, JsonSchema] = {}

    def below(self, schema: Any) -> Any:
        """Return the schema with references in place of the leaves below it."""
        if not isinstance(schema, dict):
            return schema
        rewritten = dict(schema)
        for key in _SCHEMAS_BY_NAME:
            if isinstance(schema.get(key), dict):
                rewritten[key] = {name: self._shared(below) for name, below in schema[key].items()}
        for key in _SCHEMA_LISTS:
            if isinstance(schema.get(key), list):
                share = self.below if key == "allOf" else self._shared
                rewritten[key] = [share(below) for below in schema[key]]
        for key in _SCHEMAS:
            if key in schema:
                rewritten[key] = self._shared(schema[key])
        return rewritten

    def _shared(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        leaf = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        is_costly = leaf.get("type") in ("integer", "number") or leaf.keys() & {"pattern", "allOf"}
        if leaf.get("type") not in ("integer", "number", "string") or not is_costly or not leaf.keys() <= _LEAF_KEYS:
            return self.below(schema)
        text = json.dumps(leaf)
        if text not in self._references:
            name = f"x-leaf-{len(self._references)}"
            self.definitions[name], self._references[text] = leaf, {"$ref": f"#/$defs/{name}"}
        return self._references[text]
