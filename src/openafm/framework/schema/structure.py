"""A structure: an object of named properties, and the way from its JSON to a Python value and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from openafm.framework.errors import DecodingFailureError, InvalidGenerationSchemaError, UnsupportedGuideError
from openafm.framework.schema.annotations import annotated_description, value_type
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import GenerationGuide
from openafm.framework.schema.types.base import Definition, ValueType, mismatch
from openafm.framework.schema.types.composite import Nullable
from openafm.tokenizer.conversation import JsonSchema

if TYPE_CHECKING:
    from openafm.framework.schema.records import Record


@dataclass(frozen=True)
class Property:
    """One property of a structure. Its value type is worked out, and its guides are checked, when it is asked for.

    Args:
        name: its name in JSON.
        type_class: its annotation, with names resolved.
        description: what the model is told about it; by default the text inside `Annotated`.
        guides: what narrows its type.
        has_default: whether it may be left out, with or without a `default` that can be shown.
    """

    name: str
    type_class: Any
    description: str | None = None
    guides: Sequence[GenerationGuide] = ()
    has_default: bool = False
    default: Any = None

    @property
    def value_type(self) -> ValueType:
        """The type of a value that is there.

        Raises:
            InvalidGenerationSchemaError: a type that cannot be generated, or a default of another type.
            UnsupportedGuideError: a guide that does not fit the type, or contradicts another.
        """
        return self._declared.value if isinstance(self._declared, Nullable) else self._declared

    @property
    def is_required(self) -> bool:
        """Whether the property must be there: it has no default and is not optional."""
        return not self.has_default and not isinstance(self._declared, Nullable)

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        schema = self.value_type.json_schema(refer)
        description = self.description if self.description is not None else annotated_description(self.type_class)
        if description is not None:
            schema = schema | {"description": description}
        if self.default is not None:
            schema = schema | {"default": self.value_type.encode(self.default)}
        return schema

    @cached_property
    def _declared(self) -> ValueType:
        declared = value_type(self.type_class)
        for guide in self.guides:
            declared = declared.with_guide(guide)
        try:
            if self.default is not None:
                declared.encode(self.default)
        except DecodingFailureError as error:
            raise InvalidGenerationSchemaError(f"the default is not of its type ({error})") from error
        return declared


class Structure(Definition):
    """The properties of a record, in declared order, which is the order of generation."""

    kinds = frozenset({"object"})

    def __init__(self, record: Record) -> None:
        self.record = record
        self.name, self.description = record.name, record.description

    @cached_property
    def properties(self) -> tuple[Property, ...]:
        """The properties, checked.

        Raises:
            InvalidGenerationSchemaError: a type that is unknown, or cannot be generated.
            UnsupportedGuideError: a guide that does not fit its type, or contradicts another.
        """
        properties = tuple(self.record.properties())
        for prop in properties:
            try:
                _ = prop.value_type
            except (InvalidGenerationSchemaError, UnsupportedGuideError) as error:
                raise type(error)(f"{self.name}.{prop.name}: {error}") from error
        return properties

    def definition_schema(self, refer: Callable[[Definition], JsonSchema], description: str | None = None) -> JsonSchema:
        described = description if description is not None else self.description
        return {
            "title": self.name,
            **({} if described is None else {"description": described}),
            "type": "object",
            "properties": {prop.name: prop.json_schema(refer) for prop in self.properties},
            "required": [prop.name for prop in self.properties if prop.is_required],
            "additionalProperties": False,
            "x-order": [prop.name for prop in self.properties],
        }

    def decode(self, value: Any, path: str) -> Any:
        values = {
            prop.name: prop.value_type.decode(value[prop.name], f"{path}.{prop.name}")
            for prop in self._present(value, path)
            if prop.is_required or value[prop.name] is not None
        }
        for prop in self.properties:
            if prop.name in values:
                continue
            if prop.is_required:
                raise DecodingFailureError(f"{path}: the property '{prop.name}' of {self.name} is missing")
            if not prop.has_default:
                values[prop.name] = None
        try:
            return self.record.construct(values)
        except (TypeError, ValueError) as error:
            raise DecodingFailureError(f"{path}: {self.name} refused the values generated for it: {error}") from error

    def decode_partial(self, value: Any, num_open: int, identity: GenerationID, path: str) -> Any:
        last = next(reversed(value), None) if isinstance(value, dict) else None
        values = {
            prop.name: prop.value_type.decode_partial(
                value[prop.name],
                max(num_open - 1, 0) if prop.name == last else 0,
                identity.child(prop.name),
                f"{path}.{prop.name}",
            )
            for prop in self._present(value, path)
            if prop.is_required or value[prop.name] is not None
        }
        return self.record.construct_partial(self, identity, values)

    def encode(self, value: Any) -> Any:
        if not self.record.holds(value):
            raise mismatch(self, value, "$")
        values = {prop.name: self.record.read(value, prop.name) for prop in self.properties}
        return {
            prop.name: prop.value_type.encode(values[prop.name])
            for prop in self.properties
            if prop.is_required or values[prop.name] is not None
        }

    def parts(self) -> Iterable[Definition]:
        for prop in self.properties:
            yield from prop.value_type.definitions()

    def ends(self, finite: Set[Definition]) -> bool:
        return all(prop.value_type.is_finite(finite) for prop in self.properties if prop.is_required)

    def _present(self, value: Any, path: str) -> list[Property]:
        if not isinstance(value, dict):
            raise mismatch(self, value, path)
        unknown = value.keys() - {prop.name for prop in self.properties}
        if unknown:
            raise DecodingFailureError(f"{path}: {self.name} has no property '{min(unknown)}'")
        return [prop for prop in self.properties if prop.name in value]
