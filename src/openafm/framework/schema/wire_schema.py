"""Schemas for HTTP endpoints: conversion to the strict form, and validation of replies.

Endpoints guarantee a schema only in its strict form: an object at the root, all properties required, no further properties,
few keywords. Optional properties are sent as nullable ones and other roots are wrapped in an object; `read` reverses both.
A schema without a strict form is sent unchanged and without a guarantee. Replies are validated in both cases.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from openafm.framework.errors import DecodingFailureError
from openafm.framework.schema.partial_json import read_json
from openafm.framework.schema.validation import Validation, Validator
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import ordered_properties

_WRAPPED = "value"
_STRICT = {"type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs"}
_STRICT |= {"properties", "required", "additionalProperties", "items", "minItems", "maxItems", "pattern", "format"}
_STRICT |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_LEFT_OUT = {"default", "$schema", "$id", "$comment", "examples"}  # annotations
_LISTS, _MAPS = ("anyOf", "oneOf", "allOf", "prefixItems"), ("properties", "$defs", "definitions", "patternProperties")


class WireSchema:
    """Hold a schema as it is sent to an endpoint. `strict`: the endpoint can guarantee it.

    Raises:
        InvalidGenerationSchemaError, UnsupportedGuideError: as `Validator`.
    """

    def __init__(self, schema: JsonSchema) -> None:
        self._validator = Validator(schema)
        sent = without_extensions(schema)
        self.strict = _is_strict(sent)
        self.is_wrapped = self.strict and sent.get("type") != "object"
        self.schema: JsonSchema = _all_required(sent, schema) if self.strict else sent
        if self.is_wrapped:
            self.schema = _wrapped(self.schema)

    def read(self, text: str) -> Any:
        """Return the validated value of a reply.

        Raises:
            DecodingFailureError: the text is not JSON, or does not match the schema; `raw_content` holds it.
        """
        try:
            value = read_json(text)
        except ValueError as error:
            raise DecodingFailureError(f"the model's answer is not JSON: {error}", raw_content=text) from error
        if self.is_wrapped:
            if not isinstance(value, dict) or value.keys() != {_WRAPPED}:
                raise DecodingFailureError(f"the model's answer is not an object with '{_WRAPPED}'", raw_content=text)
            value = value[_WRAPPED]
        try:
            validation = self._validator.validation()
            value = _NullRemoval(self._validator, validation).apply(value)
            problem = validation.problem(value)
        except DecodingFailureError as error:
            raise DecodingFailureError(str(error), raw_content=text) from error
        except RecursionError as error:
            raise DecodingFailureError("nested deeper than Python's recursion limit", raw_content=text) from error
        if problem is not None:
            raise DecodingFailureError(f"the model's answer does not match the schema at {problem:.300}", raw_content=text)
        return value


class _NullRemoval:
    """Remove the nulls of omitted optional properties. Memoized by schema and value, like the validation."""

    def __init__(self, validator: Validator, validation: Validation) -> None:
        self._validator, self._validation = validator, validation
        self._memo: dict[tuple[int, int], tuple[Any, Any]] = {}  # holds the value, so that its id stays unique

    def apply(self, value: Any) -> Any:
        return self._cleaned(value, self._validator.root)

    def _cleaned(self, value: Any, schema: Any) -> Any:
        if not isinstance(schema, Mapping) or not isinstance(value, dict | list):
            return value
        key = (id(schema), id(value))
        if key not in self._memo:
            self._memo[key] = value, self._clean(value, schema)
        return self._memo[key][1]

    def _clean(self, value: dict[str, Any] | list[Any], schema: Mapping[str, Any]) -> Any:
        if isinstance(reference := schema.get("$ref"), str):
            return self._cleaned(value, self._validator.resolve(reference))
        for variant in schema.get("anyOf", ()):
            cleaned = self._cleaned(value, variant)
            if self._validation.is_valid(cleaned, variant):
                return cleaned
        if isinstance(value, list):
            return [self._cleaned(item, schema.get("items")) for item in value]
        properties, required = schema.get("properties", {}), schema.get("required", ())
        return {
            name: self._cleaned(item, properties.get(name, schema.get("additionalProperties")))
            for name, item in value.items()
            if item is not None
            or name not in properties
            or name in required
            or self._validation.is_valid(None, properties[name])
        }


def without_extensions(schema: Any) -> Any:
    """Return a schema without `x-` keywords, with properties in the order of `x-order`."""
    return _mapped(schema, lambda node: {name: node[name] for name in node if not name.startswith("x-")})


def _is_strict(schema: Any) -> bool:
    """Check whether the whole schema has a strict form."""
    if not isinstance(schema, Mapping):
        return False
    if schema.keys() - _STRICT - _LEFT_OUT:
        return False
    is_object = schema.get("type") == "object" or "properties" in schema
    if is_object and schema.get("additionalProperties") is not False:
        return False
    if not schema.keys() & {"type", "enum", "const", "anyOf", "$ref"}:
        return False
    return all(_is_strict(child) for child in _children(schema))


def _all_required(schema: Any, root: JsonSchema) -> Any:
    def strict(node: dict[str, Any]) -> dict[str, Any]:
        node = {name: value for name, value in node.items() if name not in _LEFT_OUT}
        if "properties" not in node:
            return node
        properties, required = node["properties"], node.get("required", ())
        nullable = {name: part if name in required else _nullable(part) for name, part in properties.items()}
        return node | {"properties": nullable, "required": list(properties)}

    return _mapped(schema, strict)


def _nullable(schema: JsonSchema) -> JsonSchema:
    variants = schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]
    return {"anyOf": variants if {"type": "null"} in variants else [*variants, {"type": "null"}]}


def _wrapped(schema: JsonSchema) -> JsonSchema:
    """Return an object schema with one property of this schema. References are adjusted."""
    inner = _mapped(schema, lambda node: node | {"$ref": f"#/properties/{_WRAPPED}"} if node.get("$ref") == "#" else node)
    definitions = {"$defs": inner.pop("$defs")} if "$defs" in inner else {}
    wrapper = {"type": "object", "properties": {_WRAPPED: inner}, "required": [_WRAPPED], "additionalProperties": False}
    return wrapper | definitions


def _mapped(schema: Any, change: Any) -> Any:
    """Apply `change` to every subschema, innermost first."""
    if not isinstance(schema, Mapping):
        return schema
    again = functools.partial(_mapped, change=change)
    changed = dict(schema)
    if isinstance(schema.get("properties"), Mapping):
        changed["properties"] = {name: schema["properties"][name] for name in ordered_properties(schema)}
    for name, part in changed.items():
        if name in _LISTS and isinstance(part, list):
            changed[name] = list(map(again, part))
        elif name in _MAPS and isinstance(part, Mapping):
            changed[name] = {key: again(value) for key, value in part.items()}
        elif name not in ("enum", "const", "default"):
            changed[name] = again(part)
    return change(changed)


def _children(schema: Mapping[str, Any]) -> list[Any]:
    children = [child for name in _MAPS for child in schema.get(name, {}).values()]
    children += [child for name in _LISTS for child in schema.get(name, ())]
    return [*children, schema["items"]] if "items" in schema else children
