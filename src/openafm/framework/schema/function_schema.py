"""Schemas of function parameters, and the conversion of generated arguments."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.annotations import structure_of
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.records import DictRecord
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.schema.structure import SchemaProperty
from openafm.framework.schema.type_names import TypeNames

_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+)(?: *\([^)]*\))?: *(.*(?:\n(?: +.*)?)*)", re.MULTILINE)
_FIELD = re.compile(r"^:param (?:[^:\n]* )?(\w+): *(.*(?:\n +.*)*)", re.MULTILINE)


class FunctionSchema:
    """Hold the schema of a function's arguments.

    Each parameter is a property. Its annotation is the type; the docstring (`Args:` or `:param name:`) or text inside
    `Annotated` is the description; a default makes it optional. `self` of a bound method is skipped.

    Args:
        function: a function, method or coroutine function.
        local_names: the local names of the enclosing function, for annotations.

    Raises:
        InvalidGenerationSchemaError: a parameter cannot be passed by name, or its annotation is missing, undefined or of a
            type that cannot be generated.
        UnsupportedGuideError: a guide does not fit its parameter.
    """

    def __init__(self, function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> None:
        self.schema = GenerationSchema(structure_of(_SignatureRecord(function, local_names or {})))

    def call_arguments(self, content: GeneratedContent) -> dict[str, Any]:
        """Return the keyword arguments in generated content, without those that were omitted and have a default.

        Raises:
            DecodingFailureError: the content does not match the schema.
        """
        arguments: dict[str, Any] = content.value(self.schema.value_type)
        return arguments


class _SignatureRecord(DictRecord):
    def __init__(self, function: Callable[..., Any], local_names: Mapping[str, Any]) -> None:
        self.name, self.description = function.__name__, None
        self._descriptions = parameter_descriptions(inspect.getdoc(function) or "")
        self._parameters = [self._checked(parameter) for parameter in inspect.signature(function).parameters.values()]
        underlying = inspect.unwrap(getattr(function, "__func__", function))
        self._names = TypeNames(underlying, (parameter.annotation for parameter in self._parameters), local_names)

    def properties(self) -> Iterable[SchemaProperty]:
        hints = self._names.type_hints()
        return [self._property(parameter, hints[parameter.name]) for parameter in self._parameters]

    def _checked(self, parameter: inspect.Parameter) -> inspect.Parameter:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidGenerationSchemaError(
                f"the parameter '{parameter}' of {self.name} cannot be generated; use parameters that can be passed by name"
            )
        if parameter.annotation is parameter.empty:
            raise InvalidGenerationSchemaError(
                f"the parameter '{parameter.name}' of {self.name} has no type; write '{parameter.name}: str' or another type"
            )
        return parameter

    def _property(self, parameter: inspect.Parameter, annotation: Any) -> SchemaProperty:
        default = None if parameter.default is parameter.empty else parameter.default
        if isinstance(default, dataclasses.Field):
            raise InvalidGenerationSchemaError(
                f"guide() is for class fields; write '{parameter.name}: Annotated[..., fm.GenerationGuide...]'"
            )
        return SchemaProperty(
            parameter.name,
            annotation,
            self._descriptions.get(parameter.name),
            has_default=parameter.default is not parameter.empty,
            default=default,
        )


def parameter_descriptions(docstring: str) -> dict[str, str]:
    """Return the descriptions of parameters in a docstring, by name."""
    section = _SECTION.search(docstring)
    entries = _ENTRY.findall(inspect.cleandoc("\n" + section[1])) if section else []
    return {name: " ".join(text.split()) for name, text in [*entries, *_FIELD.findall(docstring)]}
