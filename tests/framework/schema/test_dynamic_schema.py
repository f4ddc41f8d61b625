"""Dynamic schemas: JSON Schema, recursion by name, errors at construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

import openafm as fm
from openafm.framework.schema.dynamic_schema import (
    DuplicatePropertyError,
    DuplicateTypeError,
    DynamicGenerationSchema,
    EmptyTypeChoicesError,
    UndefinedReferencesError,
)
from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.conversation import ToolDefinition
from openafm.tokenizer.schema_text import compact_json, schema_text
from openafm.tokenizer.tool_calls import tool_calls_schema

TOKENIZER = train_tokenizer(
    TokenizerConfig(vocab_size=320, min_frequency=1),
    ["the quick brown fox jumps over the lazy dog and whatever else there is to jump over"],
)
D = DynamicGenerationSchema
P = DynamicGenerationSchema.Property


@dataclass
class Address:
    street: str


def menu() -> fm.GenerationSchema:
    size = D.any_of(["small", "large"], name="Size", description="How big")
    price = D.of(float, [fm.GenerationGuide.range((0, 99))])
    dish = D.object(
        "Dish",
        "Something to eat",
        [
            P("name", D.of(str), "Short"),
            P("size", D.reference_to("Size")),
            P("sides", D.array_of(D.reference_to("Dish"), 0, 2)),
            P("price", price, is_optional=True),
            P("note", D.any_of([D.of(int), D.of(str)])),
            P("from", D.of(Address), is_optional=True),
        ],
    )
    return fm.GenerationSchema(root=dish, dependencies=[size])


def test_objects_have_the_schema_of_classes() -> None:
    assert menu().to_dict() == {
        "title": "Dish",
        "description": "Something to eat",
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Short"},
            "size": {"$ref": "#/$defs/Size"},
            "sides": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
            "price": {"type": "number", "minimum": 0, "maximum": 99},
            "note": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "from": {"$ref": "#/$defs/Address"},
        },
        "required": ["name", "size", "sides", "note"],
        "additionalProperties": False,
        "x-order": ["name", "size", "sides", "price", "note", "from"],
        "$defs": {
            "Size": {"title": "Size", "description": "How big", "type": "string", "enum": ["small", "large"]},
            "Address": fm.GenerationSchema(Address).to_dict(),
        },
    }


def test_values_are_checked_plain_json() -> None:
    schema = menu()
    side: dict[str, Any] = {"name": "rice", "size": "small", "sides": [], "note": "", "from": {"street": "A"}}
    value = fm.GeneratedContent({"name": "fish", "size": "large", "sides": [side], "note": 3}).value(schema.type_class)
    assert value["sides"][0] == side | {"from": Address("A")}
    assert "price" not in value
    for wrong in ({"size": "huge"}, {"note": None}, {"sides": [side] * 3}, {"more": 1}):
        with pytest.raises(fm.DecodingFailureError):
            fm.GeneratedContent(side | wrong).value(schema.type_class)


def test_recursion_through_choices_and_roots_of_each_kind() -> None:
    add = D.object("Add", properties=[P("left", D.reference_to("Expr")), P("right", D.reference_to("Expr"))])
    expression = D.any_of([add, D.of(int)], name="Expr")
    schema = fm.GenerationSchema(root=expression)
    assert schema.to_dict() == {
        "title": "Expr",
        "anyOf": [{"$ref": "#/$defs/Add"}, {"type": "integer"}],
        "$defs": {
            "Add": {
                "title": "Add",
                "type": "object",
                "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}},
                "required": ["left", "right"],
                "additionalProperties": False,
                "x-order": ["left", "right"],
            }
        },
    }
    value = {"left": 1, "right": {"left": 2, "right": 3}}
    assert fm.GeneratedContent(value).value(schema.type_class) == value
    lists = fm.GenerationSchema(root=D.any_of([D.array_of(D.reference_to("L")), D.of(bool)], name="L"))
    assert fm.GeneratedContent([[True], []]).value(lists.type_class) == [[True], []]
    assert fm.GenerationSchema(root=D.array_of(D.of(int), maximum_elements=3)).to_dict()["maxItems"] == 3
    assert fm.GenerationSchema(root=D.any_of(["a", "b", "a"])).to_dict() == {"type": "string", "enum": ["a", "b"]}
    assert fm.GenerationSchema(root=D.of(str), description="d").to_dict() == {"type": "string", "description": "d"}


def test_errors_at_construction() -> None:
    with pytest.raises(DuplicatePropertyError, match="Twice has several properties called 'a'"):
        D.object("Twice", properties=[P("a", D.of(int)), P("a", D.of(str))])
    for choices in ([], ()):
        with pytest.raises(EmptyTypeChoicesError):
            D.any_of(choices, name="Nothing")
    with pytest.raises(UndefinedReferencesError, match="no type is called 'Ghost', 'Shade'"):
        fm.GenerationSchema(root=D.any_of([D.reference_to("Ghost"), D.reference_to("Shade")]))
    with pytest.raises(DuplicateTypeError, match="'Same'"):
        fm.GenerationSchema(root=D.object("Same"), dependencies=[D.object("Same")])
    with pytest.raises(DuplicateTypeError, match="Address"):
        fm.GenerationSchema(root=D.object("Address", properties=[P("of", D.of(Address))]))
    with pytest.raises(fm.InvalidGenerationSchemaError, match="own alternatives"):
        fm.GenerationSchema(root=D.any_of([D.reference_to("A"), D.of(int)], name="A"))
    with pytest.raises(fm.InvalidGenerationSchemaError, match="no value is finite"):
        fm.GenerationSchema(root=D.object("Endless", properties=[P("next", D.reference_to("Endless"))]))
    with pytest.raises(fm.InvalidGenerationSchemaError, match="invalid type bytes"):
        D.of(bytes)
    with pytest.raises(fm.UnsupportedGuideError, match="minimum"):
        D.of(str, [fm.GenerationGuide.minimum(1)])
    with pytest.raises(fm.UnsupportedGuideError, match="leave no list"):
        D.array_of(D.of(str), 3, 2)
    with pytest.raises(ValueError, match="min_items"):
        D.array_of(D.of(str), -1)
    with pytest.raises(fm.InvalidGenerationSchemaError, match="a choice takes only"):
        D.any_of([D.of(int), 3])  # type: ignore[list-item]


def test_a_part_may_be_used_repeatedly() -> None:
    point = D.object("Point", properties=[P("x", D.of(int))])
    line = D.object("Line", properties=[P("start", point), P("end", point), P("middle", D.reference_to("Point"))])
    schema = fm.GenerationSchema(root=line, dependencies=[point]).to_dict()
    assert list(schema["$defs"]) == ["Point"]


@pytest.mark.parametrize("name", ["Box[int]", "Kätze", "My item", "a/b", "a~b", "50%", "日本", "it's"])
def test_definitions_may_have_any_name(name: str) -> None:
    item = D.object(name, properties=[P("n", D.of(int))])
    holder = D.object("Holder", properties=[P("first", item), P("second", D.reference_to(name))])
    schema = fm.GenerationSchema(root=holder).to_dict()
    jsonschema.validate({"first": {"n": 1}, "second": {"n": 2}}, schema)
    assert f"#{name.replace('~', '~0').replace('/', '~1')}=" in schema_text(schema)
    call = [{"name": "use", "arguments": {"first": {"n": 1}, "second": {"n": 2}}}]
    calls = tool_calls_schema([ToolDefinition(name="use", description="", parameters=schema)])
    jsonschema.validate(call, calls)
    matcher = GrammarCompiler(TOKENIZER).json_schema(calls).matcher()
    matcher.accept(TOKENIZER.encode(compact_json(call)))
