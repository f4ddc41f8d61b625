"""Records of pydantic models: their fields, constraints and validators."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.pydantic_metadata import constraint_guides
from openafm.framework.schema.records import ClassRecord
from openafm.framework.schema.structure import SchemaProperty


class ModelRecord(ClassRecord):
    """A pydantic model. Values pass through its validators."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, inspect.cleandoc(cls.__doc__) if cls.__doc__ else None)
        if cls.__pydantic_root_model__:
            raise InvalidGenerationSchemaError(f"invalid type {cls.__name__}: use the type inside this root model instead")
        self._model = cls

    def names(self) -> Iterable[str]:
        return list(self._model.model_fields)

    def properties(self) -> Iterable[SchemaProperty]:
        return [_field_property(name, field) for name, field in self._model.model_fields.items()]

    def construct(self, values: dict[str, Any]) -> Any:
        fields = self._model.model_fields
        return self._model.model_validate({_input_name(name, fields[name]): value for name, value in values.items()})


def _field_property(name: str, field: Any) -> SchemaProperty:
    has_default = not field.is_required()
    is_shown = has_default and field.default_factory is None
    return SchemaProperty(
        name, field.annotation, field.description, constraint_guides(field), has_default, field.default if is_shown else None
    )


def _input_name(name: str, field: Any) -> str:
    """Return the name under which the model accepts the field."""
    alias = field.validation_alias
    choices = getattr(alias, "choices", [alias])
    return next((choice for choice in choices if isinstance(choice, str)), name)
