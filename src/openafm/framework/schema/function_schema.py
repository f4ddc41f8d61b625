"""A function's parameters as a schema: what a model must write to call it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.schema.records import DictRecord
from openafm.framework.schema.schema import GenerationSchema
from openafm.framework.schema.structure import Property, Structure
from openafm.framework.schema.type_names import TypeNames

_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+)(?: *\([^)]*\))?: *(.*(?:\n(?: +.*)?)*)", re.MULTILINE)
_FIELD = re.compile(r"^:param (?:[^:\n]* )?(\w+): *(.*(?:\n +.*)*)", re.MULTILINE)


class FunctionSchema:
    """The schema of a function's arguments, and the arguments of what was generated under it.

    Every parameter is a property: typed by its annotation, described by its docstring (`Args:` or `:param name:`) or
    by text inside `Annotated`, where guides may stand too, and left out at will where it has a default. `self` of a bound
    method is no parameter; `async` makes no difference.

    Args:
        function: the function.
        local_names: what names mean where it was defined, if that was inside another function.

    Raises:
        InvalidGenerationSchemaError: a parameter that cannot be passed by name, or whose annotation is missing, unknown or
            of a type that cannot be generated.
        UnsupportedGuideError: a guide that does not fit its parameter.
    """

    def __init__(self, function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> None:
        self.schema = GenerationSchema(Structure(_SignatureRecord(function, local_names or {})))

    def call_arguments(self, content: GeneratedContent) -> dict[str, Any]:
        """The arguments to pass by name; those that were left out and have a default are absent.

        Raises:
            DecodingFailureError: the content does not fit the schema.
        """
        arguments: dict[str, Any] = content.value(self.schema.value_type)
        return arguments


class _SignatureRecord(DictRecord):
    def __init__(self, function: Callable[..., Any], local_names: Mapping[str, Any]) -> None:
        self.name, self.description = function.__name__, None
        self._descriptions = _parameter_descriptions(inspect.getdoc(function) or "")
        self._parameters = [self._checked(parameter) for parameter in inspect.signature(function).parameters.values()]
        underlying = inspect.unwrap(getattr(function, "__func__", function))
        self._names = TypeNames(underlying, (parameter.annotation for parameter in self._parameters), local_names)

    def properties(self) -> Iterable[Property]:
        hints = self._names.type_hints()
        return [self._property(parameter, hints[parameter.name]) for parameter in self._parameters]

    def _checked(self, parameter: inspect.Parameter) -> inspect.Parameter:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidGenerationSchemaError(
                f"the parameter '{parameter}' of {self.name} cannot be generated; use parameters that are passed by name"
            )
        if parameter.annotation is parameter.empty:
            raise InvalidGenerationSchemaError(
                f"the parameter '{parameter.name}' of {self.name} has no type; write '{parameter.name}: str' or another type"
            )
        return parameter

    def _property(self, parameter: inspect.Parameter, annotation: Any) -> Property:
        default = None if parameter.default is parameter.empty else parameter.default
        if isinstance(default, dataclasses.Field):
            raise InvalidGenerationSchemaError(
                f"guide() is for fields of classes; write '{parameter.name}: Annotated[..., fm.GenerationGuide...]'"
            )
        return Property(
            parameter.name,
            annotation,
            self._descriptions.get(parameter.name),
            has_default=parameter.default is not parameter.empty,
            default=default,
        )


def _parameter_descriptions(docstring: str) -> dict[str, str]:
    section = _SECTION.search(docstring)
    entries = _ENTRY.findall(inspect.cleandoc("\n" + section[1])) if section else []
    return {name: " ".join(text.split()) for name, text in [*entries, *_FIELD.findall(docstring)]}
