"""Validation of values: the verdicts of `jsonschema`, in bounded time, without following references out of the schema."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

import openafm as fm
from openafm.framework.schema.validation import Validator
from openafm.framework.schema.wire_schema import WireSchema


def random_value(chooser: random.Random, depth: int = 0) -> Any:
    if depth > 2 or chooser.random() < 0.5:
        return chooser.choice([None, True, False, -1, 0, 1, 2, 0.5, 1.0, 0.3, "", "a", "ab"])
    items = [random_value(chooser, depth + 1) for _ in range(chooser.randint(0, 3))]
    return items if chooser.random() < 0.5 else dict(zip("abc", items, strict=False))


def random_schema(chooser: random.Random, depth: int = 0) -> Any:
    def below() -> Any:
        return random_schema(chooser, depth + 1)

    if depth > 2 or chooser.random() < 0.1:
        return chooser.random() < 0.7
    makers: dict[str, Callable[[], Any]] = {
        "type": lambda: chooser.choice(["null", "integer", "number", "string", "array", "object", ["boolean", "array"]]),
        "enum": lambda: [random_value(chooser) for _ in range(3)],
        "const": lambda: random_value(chooser),
        "required": lambda: chooser.sample("abc", 1),
        "dependentRequired": lambda: {chooser.choice("abc"): ["a"]},
        "uniqueItems": lambda: chooser.random() < 0.7,
        "pattern": lambda: chooser.choice(["a", "^b", "^a?$"]),
        "minimum": lambda: chooser.randint(-1, 1),
        "exclusiveMaximum": lambda: chooser.choice([0.5, 1]),
        "multipleOf": lambda: chooser.choice([0.5, 2]),
        "$ref": lambda: "#/$defs/d",
    }
    for names, make in (
        (("allOf", "anyOf", "oneOf", "prefixItems"), lambda: [below() for _ in range(chooser.randint(1, 3))]),
        (("not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames"), below),
        (("properties", "patternProperties", "dependentSchemas"), lambda: {chooser.choice("abc"): below()}),
        (("minLength", "maxItems", "minProperties", "maxProperties", "minContains"), lambda: chooser.randint(0, 2)),
    ):
        makers |= dict.fromkeys(names, make)
    return {name: makers[name]() for name in chooser.sample(sorted(makers), chooser.randint(1, 4))}


def test_verdicts_of_jsonschema() -> None:
    num_valid = 0
    for seed in range(300):
        chooser = random.Random(seed)
        definition = random_schema(chooser, depth=1)
        if "$ref" in json.dumps(definition):
            continue
        root = {"$defs": {"d": definition}, "allOf": [random_schema(chooser) for _ in range(2)]}
        for _ in range(4):
            value = random_value(chooser)
            expected = jsonschema.Draft202012Validator(root).is_valid(value)
            problem = Validator(root).validation().problem(value)
            assert (problem is None) == expected, (seed, root, value, problem)
            num_valid += expected
    assert num_valid > 200


@pytest.mark.parametrize(
    ("schema", "value", "is_valid"),
    [
        ({"enum": [1, [True]]}, [1], False),
        ({"enum": [[1.0]]}, [1], True),
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"uniqueItems": True}, [1, True], True),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ({"multipleOf": 0.1}, 0.3, True),
        ({"type": "integer"}, 1.0, True),
        ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, {"a": {"b": 1}}, False),
    ],
)
def test_verdicts(schema: Any, value: Any, is_valid: bool) -> None:
    assert (Validator(schema).validation().problem(value) is None) == is_valid


def test_problems_have_a_path() -> None:
    schema = {"properties": {"a": {"items": {"type": "string"}}}, "required": ["a"]}
    assert Validator(schema).validation().problem({"a": ["x", 5]}) == "$.a[1]: expected string, got 5"
    assert Validator(schema).validation().problem({}) == "$: 'a' is a required property"


@pytest.mark.parametrize(
    ("schema", "error", "text"),
    [
        ({"type": "thing"}, fm.InvalidGenerationSchemaError, r"\$\.type: a type is one of"),
        ({"properties": {"a": {"minLength": -1}}}, fm.InvalidGenerationSchemaError, r"\$\.properties\.a\.minLength"),
        ({"items": [{}]}, fm.InvalidGenerationSchemaError, r"\$\.items: a schema is an object or a boolean"),
        ({"$ref": "#/$defs/none"}, fm.InvalidGenerationSchemaError, "undefined"),
        ({"$ref": "#/examples/0", "examples": [{"type": 5}]}, fm.InvalidGenerationSchemaError, "type"),
        ({"$ref": "#"}, fm.InvalidGenerationSchemaError, "leads back to itself"),
        ({"anyOf": [{"not": {"$ref": "#"}}]}, fm.InvalidGenerationSchemaError, "leads back to itself"),
        ({"properties": {"a": {"$id": "x", "items": {"$ref": "#"}}}}, fm.InvalidGenerationSchemaError, r"nested \$id"),
        ({"$dynamicRef": "#a"}, fm.UnsupportedGuideError, r"\$\.\$dynamicRef"),
        ({"unevaluatedProperties": False}, fm.UnsupportedGuideError, "unevaluatedProperties"),
        ({"pattern": "a(?=b)"}, fm.UnsupportedGuideError, "assert"),
    ],
)
def test_invalid_and_unsupported_schemas_raise(schema: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Validator(schema)


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$id", "$schema"])
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_nothing_is_fetched(keyword: str, scheme: str) -> None:
    """`jsonschema` fetched references of all of these kinds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        address = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/etc/passwd"
        schema = {"type": "object", "properties": {"a": {keyword: address, "items": {"$ref": "other"}}}}
        with pytest.raises((fm.InvalidGenerationSchemaError, fm.UnsupportedGuideError)):
            WireSchema(schema).read('{"a":[1]}')
        with pytest.raises(TimeoutError):
            server.accept()


def nested_choices(depth: int) -> dict[str, Any]:
    """A schema with 2 ** depth paths through `anyOf`."""
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"type": "array", "items": {"$ref": f"#/$defs/d{level + 1}"}}] * 2} for level in range(depth)
    }
    return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions | {f"d{depth}": {"type": "integer"}}}


def test_nested_alternatives_take_polynomial_time() -> None:
    started = time.process_time()
    for leaf in ("1", '"x"', '{"a":null}'):
        text = '{"a":' + "[" * 60 + leaf + "]" * 60 + "}"
        if leaf == "1":
            assert json.dumps(WireSchema(nested_choices(60)).read(text), separators=(",", ":")) == text
        else:
            with pytest.raises(fm.DecodingFailureError, match="does not match"):
                WireSchema(nested_choices(60)).read(text)
    assert time.process_time() - started < 2


def test_backtracking_patterns_take_linear_time() -> None:
    schema = WireSchema({"type": "object", "properties": {"a": {"type": "string", "pattern": r"^(\w+\s?)+$"}}})
    started = time.process_time()
    with pytest.raises(fm.DecodingFailureError, match="does not match"):
        schema.read(json.dumps({"a": "a" * 2_000 + "!"}))
    assert time.process_time() - started < 1


@pytest.mark.long
def test_excessive_work_is_a_decoding_failure() -> None:
    schema = WireSchema({"properties": {"a": {"items": {"enum": [[[n]] for n in range(1_000)]}}}})
    started = time.process_time()
    with pytest.raises(fm.DecodingFailureError, match="steps") as caught:
        schema.read(json.dumps({"a": [[[999]] for _ in range(6_000)]}))
    assert caught.value.raw_content
    assert time.process_time() - started < 10


def test_deep_schemas_and_values_raise() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3_000):
        schema = {"items": schema}
    with pytest.raises(fm.InvalidGenerationSchemaError, match="nested deeper"):
        Validator(schema)
    with pytest.raises(fm.DecodingFailureError):
        WireSchema({"items": {"$ref": "#"}}).read("[" * 900 + "]" * 900)
