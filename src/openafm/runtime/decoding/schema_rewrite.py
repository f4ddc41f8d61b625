"""A JSON Schema as the grammar engine should read it: what JSON Schema and Python mean, said so that the engine enforces it.

- properties in the order of `x-order`, which is the order of generation;
- numbers within ±1e18, without exponent and of at most nine digits behind the point where bounds have no more, so that each
  comes to an end and none is an infinity; where any value may stand, that holds at any depth;
- dates that exist: a year from 0001, 29 February in leap years only; seconds up to 59, which Python reads;
- of addresses (`uri`), those of pages: http or https, a host that every reader takes, up to a port of four digits;
- `minProperties` above 1 beside names of one's own choice is refused: the engine does not see a name that comes twice.
"""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any, TypeGuard

from openafm.core.errors import UsageError
from openafm.tokenizer.conversation import JsonSchema
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
"""Patterns of formats: each accepts less than the format does, and nothing that Python would not read."""

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")
_SAY_WHAT = {"type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf"}
_ANNOTATIONS = {"title", "description", "default", "examples"}
_LEAF_KEYS = {"type", "minimum", "maximum", "pattern", "minLength", "maxLength", "allOf"}
_ALL_TYPES = ["null", "boolean", "number", "string", "array", "object"]
_FINEST = Decimal("1e-22")
_ANY = "x-any-json"
_ANY_REFERENCE = {"$ref": f"#/$defs/{_ANY}"}
_ANY_DEFINITION = {
    "type": _ALL_TYPES,
    "minimum": -LARGEST_NUMBER,
    "maximum": LARGEST_NUMBER,
    "multipleOf": FINEST_FRACTION,
    "items": _ANY_REFERENCE,
    "additionalProperties": _ANY_REFERENCE,
}


class UnsupportedSchemaError(UsageError):
    """A schema that says what cannot be enforced while decoding, or that allows nothing."""


def enforceable_schema(schema: JsonSchema | bool) -> JsonSchema:
    """The schema to compile a grammar from: accepts nothing that `schema` refuses. `schema` itself is left as it is.

    Raises:
        UnsupportedSchemaError: it says what the engine would pass over, allows nothing, or is no JSON Schema.
    """
    if schema is False:
        raise UnsupportedSchemaError("the schema `false` allows nothing")
    try:
        leaves = _SharedLeaves()
        rewritten = dict(leaves.below(_value(schema, whole=True)))
        return rewritten | {"$defs": {**rewritten.get("$defs", {}), **leaves.definitions, _ANY: _ANY_DEFINITION}}
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise UnsupportedSchemaError(f"this is not a JSON Schema ({error}): {schema!r}") from error


def needs_unicode_escapes(schema: JsonSchema | bool) -> bool:
    """Whether a text that the schema spells out can only be written with an escape such as `\\u0001`."""
    return re.search(r"\\u00[01]|\x7f", json.dumps(schema, ensure_ascii=False)) is not None


def _value(schema: Any, *, whole: bool) -> Any:
    """`whole` says that nothing beside this schema restricts the value."""
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
    if whole and not schema.keys() & _SAY_WHAT:
        rewritten["type"] = _ALL_TYPES
    _check_names(rewritten)
    _check_literals([schema[key] for key in ("enum", "const") if key in schema])
    return _with_exact_format(_with_bounds(rewritten | _open_ends(rewritten, whole)))


def _open_ends(schema: JsonSchema, whole: bool) -> JsonSchema:
    """Where a schema of a type leaves items or further properties open: any JSON, at any depth."""
    types, ends = _types(schema), {}
    if whole and "array" in types and "items" not in schema:
        ends["items"] = _ANY_REFERENCE
    if whole and "object" in types and "additionalProperties" not in schema:
        ends["additionalProperties"] = _ANY_REFERENCE
    return ends


def _with_bounds(schema: JsonSchema) -> JsonSchema:
    """The schema with bounds that the engine reads exactly, none wider than what `schema` says.

    Exclusive bounds become inclusive ones: the engine takes the number itself where both bounds have the same whole part.
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
    """The greatest double at most `bound`, which is how the engine reads bounds of integers."""
    double = float(bound)
    if double > bound:
        double = math.nextafter(double, -math.inf)
    return int(double) if double.is_integer() else double


def _integer_below(bound: float) -> float:
    """The greatest integer below `bound`, as the engine reads it."""
    return _greatest_double(math.ceil(bound) - 1)


def _greatest_decimal(bound: float) -> float:
    """The greatest number at most `bound` that the engine reads exactly and writes as it is, as an integer where it is one.

    Its reader is exact up to 15 digits and 22 behind the point; beyond, it is off by one double at times.
    """
    return _read_exactly(Context(prec=15, rounding=ROUND_FLOOR).create_decimal(_exact(bound)))


def _decimal_below(bound: float) -> float:
    """The greatest number below `bound` of that kind."""
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
    if pattern is None or "string" not in _types(schema):
        return schema
    without = {key: value for key, value in schema.items() if key != "format"}
    return without | {"allOf": [*schema.get("allOf", ()), {"pattern": pattern}]}


def _check_names(schema: JsonSchema) -> None:
    open_names = "patternProperties" in schema or schema.get("additionalProperties", True) is not False
    if "object" in _types(schema) and open_names and schema.get("minProperties", 0) > 1:
        raise UnsupportedSchemaError(
            "minProperties above 1 cannot be enforced where names are open, since a name may come twice;"
            " name the properties or set additionalProperties to false"
        )


def _check_literals(value: Any) -> None:
    """Refuse spelled-out numbers of which the engine would write another."""
    if isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            _check_literals(below)
    elif isinstance(value, float) and _greatest_decimal(value) != value:
        raise UnsupportedSchemaError(f"the number {value!r} has more digits than can be enforced; use 15 at most")


def _types(schema: JsonSchema) -> set[str]:
    """The types it names; none where its values are spelled out."""
    types = schema.get("type", ())
    if schema.keys() & {"enum", "const"}:
        return set()
    return {types} if isinstance(types, str) else set(types)


class _SharedLeaves:
    """Bounded numbers and strings of a pattern as definitions, of which the engine compiles each only once.

    Branches of `oneOf` stay: the engine looks at them to see that they exclude each other.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, JsonSchema] = {}
        self._references: dict[str, JsonSchema] = {}

    def below(self, schema: Any) -> Any:
        """The schema with references in the place of the leaves below it."""
        if not isinstance(schema, dict):
            return schema
        rewritten = dict(schema)
        for key in _SCHEMAS_BY_NAME:
            if isinstance(schema.get(key), dict):
                rewritten[key] = {name: self._shared(below) for name, below in schema[key].items()}
        for key in _SCHEMA_LISTS:
            if isinstance(schema.get(key), list):
                share = self.below if key in ("oneOf", "allOf") else self._shared
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
