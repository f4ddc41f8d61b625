"""Structures: objects of named properties, converted between JSON and Python values.

A `Record` describes the Python side of a structure. Its properties carry annotations; the structure resolves them to value
types with a function that it is given, on first use, so that classes may refer to each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from openafm.framework.errors import DecodingFailureError, InvalidGenerationSchemaError, UnsupportedGuideError
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import GenerationGuide
from openafm.framework.schema.pydantic_metadata import annotated_description
from openafm.framework.schema.types.base import Definition, ValueType, mismatch
from openafm.framework.schema.types.composite import Nullable
from openafm.tokenizer.conversation import JsonSchema


@dataclass(frozen=True)
class SchemaProperty:
    """Declare one property of a structure.

    Args:
        name: the name in JSON.
        type_class: the annotation, with names resolved, or a value type.
        description: shown to the model; by default the text inside `Annotated`.
        guides: narrow the type.
        has_default: the property may be omitted.
        default: shown to the model unless it is None.
    """

    name: str
    type_class: Any
    description: str | None = None
    guides: Sequence[GenerationGuide] = ()
    has_default: bool = False
    default: Any = None


class Record(ABC):
    """Describe the Python side of a structure: its properties, and how instances are made and read."""

    name: str
    description: str | None

    @abstractmethod
    def properties(self) -> Iterable[SchemaProperty]:
        """Return the properties in the order of generation, with names in annotations resolved.

        Raises:
            InvalidGenerationSchemaError: a name in an annotation is undefined.
        """

    @abstractmethod
    def construct(self, values: dict[str, Any]) -> Any:
        """Return the Python value of these properties. Properties with a default may be absent.

        Raises whatever the constructor of the class raises.
        """

    @abstractmethod
    def construct_partial(self, generation_id: GenerationID, values: dict[str, Any]) -> Any:
        """Return a snapshot of an incomplete value. Any property may be absent."""

    @abstractmethod
    def is_instance(self, value: Any) -> bool:
        """Check whether a Python value belongs to the record."""

    @abstractmethod
    def get(self, value: Any, name: str) -> Any:
        """Return a property of a value; None where it is absent."""


class Structure(Definition):
    """A named object of properties. Declared order is the order of generation.

    Args:
        record: the Python side.
        resolve: returns the value type of an annotation.
    """

    kinds = frozenset({"object"})

    def __init__(self, record: Record, resolve: Callable[[Any], ValueType]) -> None:
        self.record, self._resolve = record, resolve
        self.name, self.description = record.name, record.description

    @property
    def properties(self) -> tuple[SchemaProperty, ...]:
        """Return the checked declarations.

        Raises:
            InvalidGenerationSchemaError: a type cannot be generated, or a default has another type.
            UnsupportedGuideError: a guide does not fit its type or contradicts another guide.
        """
        return tuple(prop.declaration for prop in self._properties)

    def definition_schema(self, refer: Callable[[Definition], JsonSchema], description: str | None = None) -> JsonSchema:
        described = description if description is not None else self.description
        return {
            "title": self.name,
            **({} if described is None else {"description": described}),
            "type": "object",
            "properties": {prop.name: prop.json_schema(refer) for prop in self._properties},
            "required": [prop.name for prop in self._properties if prop.is_required],
            "additionalProperties": False,
            "x-order": [prop.name for prop in self._properties],
        }

    def decode(self, value: Any, path: str) -> Any:
        values = {
            prop.name: prop.value_type.decode(value[prop.name], f"{path}.{prop.name}")
            for prop in self._present(value, path)
            if prop.is_required or value[prop.name] is not None
        }
        for prop in self._properties:
            if prop.name in values:
                continue
            if prop.is_required:
                raise DecodingFailureError(f"{path}: the property '{prop.name}' of {self.name} is missing")
            if not prop.declaration.has_default:
                values[prop.name] = None
        try:
            return self.record.construct(values)
        except (TypeError, ValueError) as error:
            raise DecodingFailureError(f"{path}: {self.name} refused the values generated for it: {error}") from error

    def decode_partial(self, value: Any, num_open: int, generation_id: GenerationID, path: str) -> Any:
        last = next(reversed(value), None) if isinstance(value, dict) else None
        values = {
            prop.name: prop.value_type.decode_partial(
                value[prop.name],
                max(num_open - 1, 0) if prop.name == last else 0,
                generation_id.child(prop.name),
                f"{path}.{prop.name}",
            )
            for prop in self._present(value, path)
            if prop.is_required or value[prop.name] is not None
        }
        return self.record.construct_partial(generation_id, values)

    def encode(self, value: Any) -> Any:
        if not self.record.is_instance(value):
            raise mismatch(self, value, "$")
        values = {prop.name: self.record.get(value, prop.name) for prop in self._properties}
        return {
            prop.name: prop.value_type.encode(values[prop.name])
            for prop in self._properties
            if prop.is_required or values[prop.name] is not None
        }

    def parts(self) -> Iterable[Definition]:
        for prop in self._properties:
            yield from prop.value_type.definitions()

    def is_body_finite(self, finite: Set[Definition]) -> bool:
        return all(prop.value_type.is_finite(finite) for prop in self._properties if prop.is_required)

    @cached_property
    def _properties(self) -> tuple[_TypedProperty, ...]:
        return tuple(self._typed(declaration) for declaration in self.record.properties())

    def _typed(self, declaration: SchemaProperty) -> _TypedProperty:
        try:
            declared = self._resolve(declaration.type_class)
            for guide in declaration.guides:
                declared = declared.with_guide(guide)
            _check_default(declared, declaration.default)
        except (InvalidGenerationSchemaError, UnsupportedGuideError) as error:
            raise type(error)(f"{self.name}.{declaration.name}: {error}") from error
        return _TypedProperty(
            declaration=declaration,
            value_type=declared.value if isinstance(declared, Nullable) else declared,
            is_required=not declaration.has_default and not isinstance(declared, Nullable),
        )

    def _present(self, value: Any, path: str) -> list[_TypedProperty]:
        if not isinstance(value, dict):
            raise mismatch(self, value, path)
        unknown = value.keys() - {prop.name for prop in self._properties}
        if unknown:
            raise DecodingFailureError(f"{path}: {self.name} has no property '{min(unknown)}'")
        return [prop for prop in self._properties if prop.name in value]


@dataclass(frozen=True, kw_only=True)
class _TypedProperty:
    """A declaration with its resolved type. An optional property has the type of its values, without null."""

    declaration: SchemaProperty
    value_type: ValueType
    is_required: bool

    @property
    def name(self) -> str:
        return self.declaration.name

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        schema = self.value_type.json_schema(refer)
        description = self.declaration.description
        if description is None:
            description = annotated_description(self.declaration.type_class)
        if description is not None:
            schema = schema | {"description": description}
        if self.declaration.default is not None:
            schema = schema | {"default": self.value_type.encode(self.declaration.default)}
        return schema


def _check_default(declared: ValueType, default: Any) -> None:
    try:
        if default is not None:
            declared.encode(default)
    except DecodingFailureError as error:
        raise InvalidGenerationSchemaError(f"the default has another type ({error})") from error
