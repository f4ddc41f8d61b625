"""Lowered schemas: grammars of keywords that the engine lacks accept values of the schema, and only those."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from tiny_tokenizer import TOKENIZER, accepts

from openafm.runtime.decoding.grammar import GrammarCompiler
from openafm.runtime.decoding.schema_facts import SchemaFacts
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError

COMPILER = GrammarCompiler(TOKENIZER, cache_size=0)
NUMBER_OR_TEXT = {"oneOf": [{"type": "number"}, {"type": "string"}]}
BY_CONSTANT = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": kind}, "n": {"type": "integer"}}, "required": ["kind"]}
        for kind in ("a", "b")
    ]
}
BY_REQUIRED = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NUMBER_OR_TEXT, ["1", '"x"'], ["null"]),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer"}}}, ["1", "null"], ["true"]),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {"type": ["object", "array"]}}}], "type": "object"},
            ['{"a":{"b":[1]}}'],
            ['{"a":1}', "1"],
        ),
        (BY_CONSTANT, ['{"kind":"a","n":1}', '{"kind":"b"}'], ['{"kind":"c"}', "{}"]),
        (BY_REQUIRED, ['{"a":1}', '{"b":1,"c":2}'], ['{"a":1,"b":2}', '{"c":1}']),
        ({"oneOf": [{"enum": [1, "x"]}, {"enum": [2]}, {"const": True}]}, ["1", "2", "true", '"x"'], ["3"]),
        ({"type": "object", "not": {"required": ["a"]}}, ['{"b":1}', "{}"], ['{"a":1}']),
        ({"type": "object", "properties": {"a": {"not": {}}}}, ["{}", '{"b":1}'], ['{"a":1}']),
        ({"type": "string", "not": {"enum": ["ab", "ac"]}}, ['"a"', '"ad"', '"abc"', '""', '"x"'], ['"ab"', '"ac"']),
        ({"not": {"type": ["string", "object"]}}, ["1", "null", "[1]"], ['"a"', "{}"]),
        ({"type": "integer", "not": {"const": 3}}, ["2", "4"], ["3"]),
        ({"type": "string", "not": {"pattern": "^[ab]+$"}}, ['"abc"', '""'], ['"ab"']),
        (
            {
                "type": "object",
                "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
                "required": ["kind"],
                "additionalProperties": False,
                "if": {"properties": {"kind": {"const": "a"}}},
                "then": {"required": ["n"]},
            },
            ['{"kind":"a","n":1}', '{"kind":"b"}', '{"kind":"b","n":1}'],
            ['{"kind":"a"}', '{"kind":"c"}'],
        ),
        ({"type": "object", "dependencies": {"a": ["b"]}}, ["{}", '{"b":1}', '{"a":2,"b":1}'], ['{"a":1}']),
        ({"type": "object", "dependentRequired": {"a": ["b"]}, "required": ["a"]}, ['{"a":1,"b":2}'], ['{"a":1}', "{}"]),
        (
            {"type": "array", "items": {"enum": ["a", "b", "a"]}, "uniqueItems": True, "minItems": 1},
            ['["a"]', '["b"]', '["a","b"]'],
            ["[]", '["a","a"]', '["b","b"]'],
        ),
        ({"type": "string", "format": "color"}, ['"red"'], ["1"]),
        ({"type": "string", "format": "uri", "pattern": "^mailto:"}, ['"mailto:a@b.org"'], ['"https://a.org"']),
        ({"$ref": "number.json", "x": [{"id": "number.json", "type": "integer"}]}, ["1"], ['"a"']),
        (
            {"properties": {"a": {"$ref": "#n"}}, "$defs": {"b": {"$anchor": "n", "type": "integer"}}},
            ['{"a":1}'],
            ['{"a":"x"}'],
        ),
        (
            {"id": "http://x/y#", "properties": {"a": {"id": "/a", "type": "null"}, "b": {}}},
            ['{"a":null,"b":1}'],
            ['{"a":1}'],
        ),
        (
            {"type": "object", "anyOf": [{"properties": {"details": {}}}]},
            ['{"details":[{"a":[1]}]}'],
            ["1", '{"details":1e999}'],
        ),
    ],
)
def test_lowered_keywords(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = COMPILER.json_schema(schema)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "integer"}]}}},
            r"\$\.properties\.a\.oneOf: .* use anyOf",
        ),
        ({"items": {"not": {"minLength": 3}}}, r"\$\.items\.not: .* list the allowed values"),
        ({"type": "array", "uniqueItems": True}, r"\$\.uniqueItems: .* remove it"),
        ({"items": [{"contains": {"type": "null"}}]}, r"\$\.items\[0\]\.contains: "),
        ({"$dynamicRef": "file:///etc/passwd"}, r"\$\.\$dynamicRef: "),
        ({"properties": {"a": {"$ref": "https://a.org/x"}}}, r"\$\.properties\.a\.\$ref: .* nothing is fetched"),
    ],
)
def test_refusals_have_a_path_and_a_way_out(schema: Any, message: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=message):
        COMPILER.json_schema(schema)


def random_schema(chooser: random.Random, depth: int = 0) -> Any:
    def below() -> Any:
        return random_schema(chooser, depth + 1)

    def named() -> Any:
        return {name: below() for name in chooser.sample("ab", chooser.randint(1, 2))}

    makers: dict[str, Any] = {
        "type": lambda: chooser.choice(["object", "string", "integer", ["integer", "null"], ["object", "string"]]),
        "enum": lambda: chooser.sample([1, 2, "x", "xy", None], 2),
        "required": lambda: chooser.sample("ab", 1),
        "properties": named,
    }
    if depth < 3:
        makers |= {"not": below, "oneOf": lambda: [below(), below()], "dependencies": lambda: {"a": ["b"]}, "if": below}
        makers |= {"then": below, "else": below, "anyOf": lambda: [below(), below()], "allOf": lambda: [below()]}
    return {name: makers[name]() for name in chooser.sample(sorted(makers), chooser.randint(1, 3))}


VALUES: list[Any] = [None, 1, 2, 3, "", "x", "xy", "y", {}]
VALUES += [{"a": each} for each in (None, 1, "x", {"b": 1})] + [
    {"b": 1},
    {"a": 1, "b": 2},
    {"a": "x", "b": None},
    {"a": {}, "b": 1},
]


def with_dependencies(schema: Any) -> Any:
    """Return a schema in the vocabulary of draft 2020-12, for the judge."""
    if isinstance(schema, list):
        return list(map(with_dependencies, schema))
    if not isinstance(schema, dict):
        return schema
    return {{"dependencies": "dependentRequired"}.get(key, key): with_dependencies(below) for key, below in schema.items()}


def test_random_schemas_accept_only_valid_values() -> None:
    num_compiled = num_accepted = 0
    for seed in range(120):
        schema = random_schema(random.Random(seed))
        try:
            grammar = COMPILER.json_schema(schema)
        except UnsupportedSchemaError:
            continue
        num_compiled += 1
        judge = jsonschema.Draft202012Validator(with_dependencies(schema))
        for value in VALUES:
            if accepts(grammar, json.dumps(value, separators=(",", ":"))):
                num_accepted += 1
                assert judge.is_valid(value), (seed, schema, value)
    assert num_compiled > 50
    assert num_accepted > 200


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"type": "integer"}, {"type": "number"}, False),
        ({"type": "integer"}, {"type": ["null", "string"]}, True),
        ({"const": 1}, {"enum": [1.0]}, False),
        ({"const": True}, {"const": 1}, True),
        ({"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}, False),
        ({"type": "object", "required": ["a"]}, {"type": "object", "properties": {"a": False}}, True),
        ({"type": "object", "required": ["a"]}, {"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"anyOf": [{"type": "null"}, {"const": "x"}]}, {"type": "integer"}, True),
    ],
)
def test_proofs_of_disjointness(first: Any, second: Any, expected: bool) -> None:
    assert SchemaFacts({}).are_disjoint(first, second) is expected
    assert SchemaFacts({}).are_disjoint(second, first) is expected


def test_proofs_take_bounded_time() -> None:
    """Two recursive schemas whose comparison would follow 4 ** 40 paths."""
    definitions = {
        f"d{level}": {
            "anyOf": [{"type": "object", "required": ["a"], "properties": {"a": {"$ref": f"#/$defs/d{level + 1}"}}}] * 4
        }
        for level in range(40)
    }
    root = {"$defs": definitions | {"d40": {"type": "integer"}}}
    assert not SchemaFacts(root).are_disjoint({"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"oneOf": [{"type": "string"}, {"const": 3}]}, {"string", "integer"}),
        ({"anyOf": [{"type": "string"}, {"enum": [None, 0.5]}]}, {"string", "null", "fraction"}),
        ({"type": ["string", "null"], "oneOf": [{"type": "string"}, {"type": "array"}]}, {"string"}),
        (
            {"allOf": [{"type": ["string", "null", "object"]}, {"anyOf": [{"type": "null"}, {"type": "object"}]}]},
            {"null", "object"},
        ),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, {"integer"}),
    ],
)
def test_types_of_combinations(schema: Any, expected: set[str]) -> None:
    assert SchemaFacts(schema).kinds(schema) == expected


def test_types_of_schemas_that_refer_to_themselves_are_bounded() -> None:
    for key in ("allOf", "anyOf", "oneOf"):
        schema = {"$ref": "#/$defs/a", "$defs": {"a": {"type": ["string", "null"], key: [{"$ref": "#/$defs/a"}]}}}
        assert SchemaFacts(schema).kinds(schema) == {"string", "null"}
