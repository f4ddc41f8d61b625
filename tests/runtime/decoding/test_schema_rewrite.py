"""Rewritten schemas: the grammar accepts only what JSON Schema, the Gregorian calendar and Python accept."""

from __future__ import annotations

import copy
import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_tokenizer import TOKENIZER, accepts

from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError
from openafm.runtime.decoding.schema_rewrite import enforceable_schema

DATE = {"type": "string", "format": "date"}
COMPILER = GrammarCompiler(TOKENIZER)


def allows(schema: Any, text: str) -> bool:
    return accepts(COMPILER.json_schema(schema), text)


def exists(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32))
@example(1900, 2, 29)
@example(2000, 2, 29)
@example(2023, 2, 29)
@example(2024, 2, 29)
@example(4, 2, 29)
@example(0, 2, 29)
@example(0, 1, 1)
@example(2024, 2, 30)
def test_dates_exist(year: int, month: int, day: int) -> None:
    text = f"{year:04}-{month:02}-{day:02}"
    assert allows(DATE, json.dumps(text)) == exists(text)


def test_every_day_of_leap_and_common_years() -> None:
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2024, 9999):
        for month in range(1, 13):
            for day in range(27, 32):
                text = f"{year:04}-{month:02}-{day:02}"
                assert allows(DATE, json.dumps(text)) == exists(text), text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-02-29T23:59:59Z", True),
        ("2024-02-29T23:59:59.123456+05:30", True),
        ("2023-02-29T10:00:00Z", False),
        ("2024-02-29T23:59:60Z", False),
        ("2024-02-29T24:00:00Z", False),
        ("2024-02-29T10:00:00", False),
    ],
)
def test_times_are_those_that_python_parses(text: str, expected: bool) -> None:
    assert allows({"type": "string", "format": "date-time"}, json.dumps(text)) is expected
    assert allows({"type": "string", "format": "time"}, json.dumps(text[11:])) is (expected or text[:10] == "2023-02-29")
    if expected:
        datetime.datetime.fromisoformat(text)


def test_a_format_combines_with_a_pattern_and_other_types() -> None:
    schema = {"type": ["string", "null"], "format": "date", "pattern": "^2"}
    assert allows(schema, '"2024-01-31"')
    assert allows(schema, "null")
    assert not allows(schema, '"1999-01-31"')
    assert not allows(schema, '"2023-02-29"')


@pytest.mark.parametrize(
    "schema", [{"type": "number"}, {"type": ["number", "null"], "minimum": 0}, {}, True, {"type": "array"}]
)
@pytest.mark.parametrize("number", ["1e999", "1E5", "1" * 30, "0." + "1" * 10, "0.5" + "0" * 30])
def test_numbers_are_finite_and_bounded_in_length(schema: Any, number: str) -> None:
    def within(text: str) -> str:
        return f"[{text}]" if schema == {"type": "array"} else text

    assert not allows(schema, within(number))
    assert allows(schema, within("0." + "1" * 9))


def test_bounds_below_the_finest_fraction() -> None:
    schema = {"type": "number", "minimum": 1e-12, "maximum": 3e-12}
    assert allows(schema, "0.000000000002")
    assert not allows(schema, "0.000000000004")


@pytest.mark.parametrize("keyword", ["maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"])
def test_bounds_beyond_doubles_are_rounded_inwards(keyword: str) -> None:
    bound = 2**53 + 3
    sign = 1 if "Maximum" in keyword or keyword == "maximum" else -1
    schema = {"type": "integer", keyword: sign * bound}
    assert not allows(schema, str(sign * (bound + 1)))
    assert allows(schema, str(sign * (bound - 3)))


def test_open_places_accept_any_json_with_bounded_numbers() -> None:
    for schema in (
        {},
        True,
        {"type": "object"},
        {"properties": {"a": True}},
        {"anyOf": [{"type": "object"}, {"type": "null"}]},
    ):
        assert allows(schema, '{"a":[1,{"b":[null,"x",-2.5]}]}')
        assert not allows(schema, '{"a":[1,{"b":[1e999]}]}')


def test_open_places_beside_an_intersection_have_three_levels() -> None:
    schema = {"allOf": [{"type": "object", "properties": {"a": True}}, {"required": ["a"]}]}
    assert allows(schema, '{"a":[[[1,"x",null]]]}')
    assert allows(schema, '{"a":{"b":{"c":{"d":true}}}}')
    assert not allows(schema, '{"a":[[[1e999]]]}')
    assert not allows(schema, '{"a":[[[[1]]]]}')


def test_properties_have_the_order_of_generation() -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"const": 1}, "a": {"const": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert allows(schema, '{"b":1,"a":2}')
    assert not allows(schema, '{"a":2,"b":1}')
    assert allows(schema | {"x-order": ["a", "b"]}, '{"a":2,"b":1}')
    assert not allows(schema | {"x-order": ["a", "b"]}, '{"b":1,"a":2}')


def test_engine_options_inside_a_schema_are_ignored() -> None:
    loose = {"whitespace_flexible": True, "lenient": True, "coerce_one_of": True}
    inner = {"type": "array", "items": {"type": "integer"}, "x-guidance": loose}
    schema = {"type": "object", "properties": {"a": inner}, "required": ["a"], "x-guidance": loose}
    assert allows(schema, '{"a":[1,2]}')
    assert not allows(schema, '{"a":[1, 2]}')
    assert not allows(schema, '{"a": [1,2]}')
    with pytest.raises(UnsupportedSchemaError):
        COMPILER.json_schema({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}], "x-guidance": loose})


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "foo"},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "number", "minimum": "a"},
        {"type": "array", "minItems": "x"},
        {"properties": {"a": 3}},
        {"properties": []},
        {"const": float("nan")},
        {"const": "\ud800"},
        {"type": "array", "uniqueItems": True},
        {"type": "object", "minProperties": 2},
        {"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False, "minProperties": 2},
        {"type": "string", "not": {"minLength": 3}},
        {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema"},
    ],
)
def test_unenforceable_schemas_raise(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        COMPILER.json_schema(schema)


def test_the_incorrect_keyword_is_named() -> None:
    with pytest.raises(UnsupportedSchemaError, match=r"\$\.items\.minimum: expected a number, got 'a'"):
        COMPILER.json_schema({"type": "array", "items": {"type": "number", "minimum": "a"}})


def test_the_given_schema_is_unchanged() -> None:
    schema = {
        "type": "object",
        "properties": {"b": DATE, "a": {"type": "number"}, "any": {}},
        "x-order": ["a"],
        "$defs": {"d": {"items": True}},
    }
    before = copy.deepcopy(schema)
    rewritten = enforceable_schema(schema)
    assert schema == before
    assert list(schema["properties"]) == ["b", "a", "any"]
    assert list(rewritten["properties"]) == ["a", "b", "any"]


@given(st.floats(-1e17, 1e17), st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]))
@example(0.9706139926869055, "maximum")
@example(9.19416160786391e-09, "minimum")
@example(1e-09, "exclusiveMinimum")
@example(10000000.0, "exclusiveMinimum")
def test_the_engine_parses_rewritten_bounds_exactly(bound: float, keyword: str) -> None:
    end = "maximum" if "aximum" in keyword else "minimum"
    rewritten = enforceable_schema({"type": "number", keyword: bound})[end]
    assert rewritten <= bound if end == "maximum" else rewritten >= bound
    assert (rewritten != bound) or not keyword.startswith("exclusive")
    if rewritten not in (0, bound):  # tolerance: the last parsed digit, and the rounding of doubles
        assert abs(rewritten - bound) <= max(1.02e-14 * abs(bound), 1.01e-22)
    text = format(Decimal(repr(rewritten)), "f")
    edge = {"type": "number", "minimum": rewritten, "maximum": rewritten}
    assert accepts(COMPILER.json_schema(edge), text)


@pytest.mark.parametrize("schema", [{"const": 0.9706139926869055}, {"enum": [1, [{"a": 1.2345678901234567}]]}])
def test_literals_with_too_many_digits_raise(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError, match="more digits"):
        enforceable_schema(schema)
    assert enforceable_schema({"const": 0.1})["const"] == 0.1


def test_exclusive_bounds_of_integers() -> None:
    grammar = COMPILER.json_schema({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 2.5})
    assert [text for text in "0123" if accepts(grammar, text)] == ["1", "2"]


@pytest.mark.parametrize(("low", "high"), [(0, 1e-7), (1, 1.5), (0.5, 1), (-1, -0.5), (-0.25, 0)])
def test_exclusive_bounds_with_equal_integer_parts(low: float, high: float) -> None:
    grammar = COMPILER.json_schema({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
    for bound in (low, high):
        for text in (f"{bound:.7f}", f"{bound:.8f}", str(int(bound))):
            assert accepts(grammar, text) == (low < float(text) < high), text
    assert accepts(grammar, format(Decimal(repr((low + high) / 2)), "f"))


@pytest.mark.parametrize(
    ("schema_format", "good", "bad"),
    [
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000", "0" * 8 + "-AAAA-bbbb-0000-" + "f" * 12], ["0" * 32, "{}", "g"]),
        (
            "uri",
            ["https://a.org", "http://localhost:8080/x?y=1#z", "http://127.0.0.1/", "https://a-b.c.example/%20~"],
            ["ftp://a.org", "https://", "https://a", "http://1.2.3.256", "https://a--b.org", "http://a.org/ ", "a.org"],
        ),
    ],
)
def test_formats_of_identifiers_and_addresses(schema_format: str, good: list[str], bad: list[str]) -> None:
    grammar = COMPILER.json_schema({"type": "string", "format": schema_format})
    assert [text for text in good if not accepts(grammar, f'"{text}"')] == []
    assert [text for text in bad if accepts(grammar, f'"{text}"')] == []


def test_leaves_of_one_kind_are_one_definition() -> None:
    number = {"type": "integer", "minimum": 1}
    properties = {name: number | {"description": name, "default": 2} for name in "abc"}
    schema = {
        "type": "object",
        "properties": {**properties, "d": {"$ref": "#/properties/a"}, "e": {"type": "array", "items": number}},
        "required": list("abcde"),
        "additionalProperties": False,
    }
    rewritten = enforceable_schema(schema)
    assert len([name for name in rewritten["$defs"] if name.startswith("x-leaf")]) == 1
    grammar = COMPILER.json_schema(schema)
    assert accepts(grammar, '{"a":1,"b":2,"c":3,"d":4,"e":[5]}')
    assert not accepts(grammar, '{"a":1,"b":2,"c":3,"d":0,"e":[5]}')
    assert not accepts(grammar, '{"a":1,"b":2,"c":3,"d":4,"e":[0]}')
