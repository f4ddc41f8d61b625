"""Schema text: frozen, complete, shorter than the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.schema_text import SchemaTextError, compact_json, ordered_properties, schema_text

SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "schemas.json").read_text(encoding="utf-8"))


def test_schema_text_is_frozen(check_golden: Callable[[str, str], None]) -> None:
    check_golden("schemas.txt", "".join(f"# {name}\n{schema_text(schema)}\n\n" for name, schema in SCHEMAS.items()))


def test_schema_text_costs_less_than_half_of_the_schema(tokenizer: Tokenizer) -> None:
    text = sum(len(tokenizer.encode(schema_text(schema))) for schema in SCHEMAS.values())
    assert text < 0.5 * sum(len(tokenizer.encode(compact_json(schema))) for schema in SCHEMAS.values())


def test_text_mirrors_the_answer_in_the_order_of_generation() -> None:
    schema = SCHEMAS["event"]
    assert ordered_properties(schema) == ["title", "kind", "start", "guests", "reminder"]
    assert schema_text(schema).startswith(
        'CalendarEvent{"title":string(Short name),"kind":"work"|"private","start":date-time,'
    )


def test_order_of_definitions_and_keywords_does_not_matter() -> None:
    for name, schema in SCHEMAS.items():
        if isinstance(schema, dict) and name != "combinations":
            assert schema_text(dict(reversed(schema.items()))) == schema_text(schema), name


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("string", change)
    for change in (
        {"pattern": "a+"},
        {"format": "date"},
        {"format": "string"},
        {"minLength": 3},
        {"maxLength": 3},
        {"enum": ["a"]},
        {"const": "b"},
        {"description": "said"},
        {"title": "Name"},
        {"default": "x"},
        {"nullable": True},
        {"contentEncoding": "base64"},
    )
]
CHANGES += [("integer", change) for change in ({"minimum": 1}, {"maximum": 1}, {"multipleOf": 2}, {"exclusiveMinimum": 1})]
CHANGES += [
    ("array", change) for change in ({"items": {"type": "null"}}, {"minItems": 1}, {"maxItems": 1}, {"uniqueItems": True})
]
CHANGES += [
    ("object", change)
    for change in (
        {"properties": {"a": {}}},
        {"properties": {"a": {}}, "required": ["a"]},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"additionalProperties": False},
        {"patternProperties": {"^a": {}}},
        {"minProperties": 1},
        {"propertyNames": {"maxLength": 3}},
    )
]


def test_every_keyword_is_in_the_text() -> None:
    texts = [schema_text({"type": type_name}) for type_name in ("string", "integer", "array", "object")]
    texts += [schema_text({"type": type_name, **change}) for type_name, change in CHANGES]
    assert len(set(texts)) == len(texts)


def test_circular_references_terminate() -> None:
    inner = {"properties": {"x": {"$ref": "#/$defs/B"}}}
    schema = {"properties": {"a": inner}, "$defs": {"B": {"properties": {"y": {"$ref": "#/properties/a"}}}}}
    assert schema_text(schema) == '{"a"?:{"x"?:{"y"?:{"x"?:#B}}}}\n#B={"y"?:#properties/a}\n#properties/a={"x"?:#B}'
    assert schema_text({"$ref": "#"}) == "#"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$ref": "https://example.com/x"}, "outside the schema"),
        ({"$ref": "#anchor"}, "outside the schema"),
        ({"$ref": "#/$defs/Missing"}, r"'\$defs' does not exist"),
        ({"type": "text"}, "unknown type 'text'"),
        ({"items": 3}, "expected a JSON Schema"),
        ({"properties": ["a"]}, r"\$\.properties: expected an object of schemas, got \['a'\]"),
        ({"required": 3}, r"\$\.required: expected a list of strings, got 3"),
        ({"type": 3}, r"\$\.type: a type is one of null, .*, got 3"),
        ({"properties": {"a": {"anyOf": [{"enum": 3}]}}}, r"\$\.properties\.a\.anyOf\[0\]\.enum: expected a list, got 3"),
        ({"type": "string", "description": 3}, r"\$\.description: expected a string, got 3"),
        ({"type": "object", "x-order": 3}, r"\$\.x-order: expected a list of strings, got 3"),
        ({"const": float("nan")}, "not a JSON Schema"),
        ("string", "expected a JSON Schema"),
    ],
)
def test_bad_schemas_are_refused(schema: Any, text: str) -> None:
    with pytest.raises(SchemaTextError, match=text):
        schema_text(schema)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)


@pytest.mark.long
@given(value=json_values)
def test_compact_json_is_json_without_spaces(value: Any) -> None:
    text = compact_json(value)
    assert json.loads(text) == value
    assert text.encode()


def test_compact_json_in_detail() -> None:
    assert compact_json({"a": 1, "b": [2, "né"], "c": None}) == '{"a":1,"b":[2,"né"],"c":null}'
    assert compact_json("\ud83d") == '"\\ud83d"'
    with pytest.raises(ValueError, match="JSON"):
        compact_json(float("inf"))
