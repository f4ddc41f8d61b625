"""Records of dictionaries, typed dictionaries, classes and dataclasses."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NotRequired, Required, get_origin

from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import FieldGuide
from openafm.framework.schema.structure import Record, SchemaProperty
from openafm.framework.schema.type_names import TypeNames

PARTIAL_OF = "__openafm_partial_of__"  # attribute of a snapshot class: the class it is a snapshot of


class DictRecord(Record):
    """Base of records whose values are dictionaries."""

    def construct(self, values: dict[str, Any]) -> Any:
        return values

    def construct_partial(self, generation_id: GenerationID, values: dict[str, Any]) -> Any:
        return values

    def is_instance(self, value: Any) -> bool:
        return isinstance(value, dict)

    def get(self, value: Any, name: str) -> Any:
        return value.get(name)


class PropertiesRecord(DictRecord):
    """A dictionary with an explicit list of properties."""

    def __init__(self, name: str, description: str | None, properties: Sequence[SchemaProperty]) -> None:
        self.name, self.description, self._properties = name, description, properties

    def properties(self) -> Iterable[SchemaProperty]:
        return self._properties


class TypedDictRecord(DictRecord):
    """A `TypedDict`. Keys that are not required are optional."""

    def __init__(self, cls: Any) -> None:
        self.name, self.description = cls.__name__, None
        self._cls, self._names = cls, TypeNames(cls, cls.__annotations__.values(), {})

    def properties(self) -> Iterable[SchemaProperty]:
        hints = self._names.type_hints()
        return [SchemaProperty(name, hint, has_default=self._is_optional(name, hint)) for name, hint in hints.items()]

    def _is_optional(self, name: str, hint: Any) -> bool:
        if get_origin(hint) in (Required, NotRequired):  # __required_keys__ misses these in string annotations
            return get_origin(hint) is NotRequired
        return name not in self._cls.__required_keys__


class ClassRecord(Record):
    """Base of records whose values are instances of a class, with properties as attributes."""

    def __init__(self, cls: type, description: str | None) -> None:
        self.cls, self.name, self.description = cls, cls.__name__, description

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of the properties."""

    def construct_partial(self, generation_id: GenerationID, values: dict[str, Any]) -> Any:
        return self.partial_class(generation_id=generation_id, **values)

    def is_instance(self, value: Any) -> bool:
        return isinstance(value, self.cls)

    def get(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    @cached_property
    def partial_class(self) -> type:
        """Return the class of snapshots: every field may be None, and `generation_id` identifies the element."""
        generation_id = (
            "generation_id",
            GenerationID,
            dataclasses.field(default_factory=GenerationID, compare=False, repr=False),
        )
        fields = [(name, Any, None) for name in self.names()]
        namespace = {
            PARTIAL_OF: self.cls,
            "__module__": self.cls.__module__,
            "__qualname__": f"{self.cls.__qualname__}.PartiallyGenerated",
        }
        return dataclasses.make_dataclass("PartiallyGenerated", [*fields, generation_id], namespace=namespace, kw_only=True)


class DataclassRecord(ClassRecord):
    """A dataclass. `guide()` adds descriptions and guides to its fields."""

    def __init__(self, cls: Any, description: str | None = None, local_names: Mapping[str, Any] | None = None) -> None:
        super().__init__(cls, description)
        self._fields = [field for field in dataclasses.fields(cls) if field.init]
        self._type_names = TypeNames(cls, (field.type for field in self._fields), local_names or {})

    def names(self) -> Iterable[str]:
        return [field.name for field in self._fields]

    def properties(self) -> Iterable[SchemaProperty]:
        hints = self._type_names.type_hints()
        return [_field_property(field, hints[field.name]) for field in self._fields]

    def construct(self, values: dict[str, Any]) -> Any:
        return self.cls(**values)


def _field_property(field: dataclasses.Field[Any], annotation: Any) -> SchemaProperty:
    field_guide = FieldGuide.of(field)
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return SchemaProperty(
        field.name,
        annotation,
        field_guide.description,
        field_guide.guides,
        has_default,
        None if field.default is dataclasses.MISSING else field.default,
    )
