"""Schemas for HTTP endpoints: conversion to the strict form, and validation of replies.

Endpoints guarantee a schema only in its strict form: an object at the root, all properties required, no further properties,
few keywords. Optional properties are sent as nullable ones and other roots are wrapped in an object; `read` reverses both.
A schema without a strict form is sent unchanged and without a guarantee. Replies are validated in both cases.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openafm.framework.errors import (
    AssetsUnavailableError,
    DecodingFailureError,
    InvalidGenerationSchemaError,
    SchemaFormatError,
    UnsupportedGuideError,
)
from openafm.framework.schema.partial_json import read_json
from openafm.tokenizer.conversation import JsonSchema
from openafm.tokenizer.schema_text import ordered_properties

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_WRAPPED = "value"
_STRICT = {"type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs"}
_STRICT |= {"properties", "required", "additionalProperties", "items", "minItems", "maxItems", "pattern", "format"}
_STRICT |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_LEFT_OUT = {"default", "$schema", "$id", "$comment", "examples"}  # annotations
_LISTS, _MAPS = ("anyOf", "oneOf", "allOf", "prefixItems"), ("properties", "$defs", "definitions", "patternProperties")


class WireSchema:
    """Hold a schema as it is sent to an endpoint. `strict`: the endpoint can guarantee it.

    Raises:
        InvalidGenerationSchemaError: the schema is malformed, or a reference is undefined.
        UnsupportedGuideError: a pattern cannot be validated.
        AssetsUnavailableError: the validator is not installed.
    """

    def __init__(self, schema: JsonSchema) -> None:
        self._validator = _validator(schema)
        self._root = schema
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
            value = self._without_nulls(value, self._root)
            problem = next(iter(self._validator.iter_errors(value)), None)
        except RecursionError as error:
            raise DecodingFailureError("nested deeper than Python's recursion limit", raw_content=text) from error
        if problem is not None:
            raise DecodingFailureError(
                f"the model's answer does not match the schema at {problem.json_path}: {problem.message:.200}",
                raw_content=text,
            )
        return value

    def _without_nulls(self, value: Any, schema: Any) -> Any:
        """Return `value` without the nulls of omitted optional properties."""
        if not isinstance(schema, Mapping):
            return value
        if isinstance(reference := schema.get("$ref"), str):
            return self._without_nulls(value, _resolved(self._root, reference))
        for variant in schema.get("anyOf", ()):
            cleaned = self._without_nulls(value, variant)
            if self._fits(cleaned, variant):
                return cleaned
        if isinstance(value, list):
            return [self._without_nulls(item, schema.get("items")) for item in value]
        if not isinstance(value, dict):
            return value
        properties, required = schema.get("properties", {}), schema.get("required", ())
        return {
            name: self._without_nulls(item, properties.get(name, schema.get("additionalProperties")))
            for name, item in value.items()
            if not (item is None and name in properties and name not in required and not self._fits(None, properties[name]))
        }

    def _fits(self, value: Any, schema: Any) -> bool:
        return bool(self._validator.evolve(schema=schema).is_valid(value))


def _validator(schema: JsonSchema) -> Draft202012Validator:
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
    except ImportError as error:
        raise AssetsUnavailableError("the package jsonschema is missing; install openafm with the extra 'http'") from error
    _check_references_and_patterns(schema, schema)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise SchemaFormatError(f"incorrect schema format: {error.message:.200} at {error.json_path}") from error
    return Draft202012Validator(schema)


def _check_references_and_patterns(node: Any, root: JsonSchema) -> None:
    """Check references and patterns before the validator reaches them."""
    if isinstance(node, list):
        for item in node:
            _check_references_and_patterns(item, root)
    if not isinstance(node, Mapping):
        return
    try:
        if isinstance(reference := node.get("$ref"), str):
            _resolved(root, reference)
        if isinstance(pattern := node.get("pattern"), str):
            re.compile(pattern)
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidGenerationSchemaError(f"the reference {reference!r} is undefined in the schema") from error
    except (re.error, OverflowError) as error:
        raise UnsupportedGuideError(f"the pattern {pattern!r} cannot be checked: {error}") from error
    for part in node.values():
        _check_references_and_patterns(part, root)


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


def _resolved(root: Any, reference: str) -> Any:
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"outside the schema: {reference}")
    target = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        target = target[int(key)] if isinstance(target, list) else target[key]
    return target
