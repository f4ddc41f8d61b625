"""Schemas that only infinite values satisfy are refused; recursion that can end is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from openafm.runtime.decoding.schema_finiteness import check_finite
from openafm.runtime.decoding.schema_lowering import UnsupportedSchemaError

SELF = {"$ref": "#"}


def node(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def chain(length: int, end: Any) -> dict[str, Any]:
    """Return definitions of which each requires the next one twice."""
    definitions: dict[str, Any] = {
        f"d{index}": node(a={"$ref": f"#/$defs/d{index + 1}"}, b={"$ref": f"#/$defs/d{index + 1}"})
        for index in range(length)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{length}": end}}


@pytest.mark.parametrize(
    "schema",
    [
        SELF,
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"anyOf": [SELF, SELF]},
        {"allOf": [SELF]},
        node(key={"type": "string"}, next=SELF),
        {"type": "array", "items": SELF, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "string"}, SELF], "minItems": 2},
        node(next={"anyOf": [SELF, node(other=SELF)]}),
        chain(200, {"$ref": "#/$defs/d7"}),
    ],
)
def test_endless_schemas_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchemaError, match="without end"):
        check_finite(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"next": SELF}},
        node(next={"anyOf": [SELF, {"type": "null"}]}),
        {"type": ["object", "null"], "properties": {"next": SELF}, "required": ["next"]},
        {"type": "array", "items": SELF},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": SELF, "minItems": 1},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
        node(value={"const": 1}, other={"enum": ["a"]}),
        chain(200, {"type": "string"}),
    ],
)
def test_recursion_that_can_end_is_accepted(schema: dict[str, Any]) -> None:
    check_finite(schema)


def test_the_work_is_bounded() -> None:
    names = [f"d{index * 37 % 997}" for index in range(997)]
    definitions: dict[str, Any] = {name: {"$ref": f"#/$defs/{following}"} for name, following in pairwise(names)}
    schema = {"$ref": f"#/$defs/{names[0]}", "$defs": dict(sorted({**definitions, names[-1]: {"type": "string"}}.items()))}
    with pytest.raises(UnsupportedSchemaError, match="too deeply"):
        check_finite(schema)
