"""Objects of given JSON Schemas are closed by default."""

from __future__ import annotations

from typing import Any

import pytest

import openafm as fm
from openafm.framework.schema.closing import closed_schema

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = OBJECT | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OBJECT, CLOSED),
        (OBJECT | {"additionalProperties": True}, OBJECT | {"additionalProperties": True}),
        (OBJECT | {"patternProperties": {"^x": OBJECT}}, OBJECT | {"patternProperties": {"^x": CLOSED}}),
        ({"type": "object"}, {"type": "object"}),
        ({"items": OBJECT}, {"items": CLOSED}),
        ({"properties": {"b": OBJECT}}, {"properties": {"b": CLOSED}, "additionalProperties": False}),
        ({"additionalProperties": OBJECT}, {"additionalProperties": CLOSED}),
        ({"anyOf": [OBJECT, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"allOf": [OBJECT, OBJECT]}, {"allOf": [OBJECT, OBJECT]}),
        (OBJECT | {"anyOf": [OBJECT]}, OBJECT | {"anyOf": [OBJECT]}),
        ({"enum": [{"properties": {}}]}, {"enum": [{"properties": {}}]}),
        ({"$ref": "#/$defs/d", "$defs": {"d": OBJECT}}, {"$ref": "#/$defs/d", "$defs": {"d": CLOSED}}),
        (
            {"allOf": [{"$ref": "#/definitions/d"}, OBJECT], "definitions": {"d": OBJECT, "e": OBJECT}},
            {"allOf": [{"$ref": "#/definitions/d"}, OBJECT], "definitions": {"d": OBJECT, "e": CLOSED}},
        ),
    ],
)
def test_closing(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(schema)
    assert closed_schema(schema) == expected
    assert repr(schema) == before


def test_a_session_generates_declared_properties_only(model: fm.SystemLanguageModel) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    for seed in range(4):
        options = fm.GenerationOptions(fm.SamplingMode.random(seed=seed), maximum_response_tokens=40)
        content = fm.LanguageModelSession(model=model).respond_blocking("x", json_schema=schema, options=options)
        assert content.value().keys() <= {"a"}
