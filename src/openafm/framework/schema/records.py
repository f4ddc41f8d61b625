"""Records: what a structure is in Python, and where its properties come from. Here dataclasses and typed dictionaries."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NotRequired, Required, get_origin

from openafm.framework.schema.annotations import PARTIAL_OF
from openafm.framework.schema.generation_id import GenerationID
from openafm.framework.schema.guides import FieldGuide
from openafm.framework.schema.structure import Property, Structure
from openafm.framework.schema.type_names import TypeNames


class Record(ABC):
    """The Python side of a structure."""

    name: str
    description: str | None

    @abstractmethod
    def properties(self) -> Iterable[Property]:
        """The properties in the order of generation, with names in annotations resolved.

        Raises:
            InvalidGenerationSchemaError: a name in an annotation that means nothing.
        """

    @abstractmethod
    def construct(self, values: dict[str, Any]) -> Any:
        """The Python value of these properties; those with a default may be absent. May raise what the class raises."""

    @abstractmethod
    def construct_partial(self, structure: Structure, identity: GenerationID, values: dict[str, Any]) -> Any:
        """What the value looks like while it is written; any property may be absent."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether this is a value of the record."""

    @abstractmethod
    def read(self, value: Any, name: str) -> Any:
        """A property of a value; None where it is absent."""


class DictRecord(Record):
    """A record whose values are dictionaries."""

    def construct(self, values: dict[str, Any]) -> Any:
        return values

    def construct_partial(self, structure: Structure, identity: GenerationID, values: dict[str, Any]) -> Any:
        return values

    def holds(self, value: Any) -> bool:
        return isinstance(value, dict)

    def read(self, value: Any, name: str) -> Any:
        return value.get(name)


class PropertiesRecord(DictRecord):
    """A record that is nothing but properties given one by one."""

    def __init__(self, name: str, description: str | None, properties: Sequence[Property]) -> None:
        self.name, self.description, self._properties = name, description, properties

    def properties(self) -> Iterable[Property]:
        return self._properties


class TypedDictRecord(DictRecord):
    """A `TypedDict`. A key that is not required may be left out."""

    def __init__(self, cls: Any) -> None:
        self.name, self.description = cls.__name__, None
        self._cls, self._names = cls, TypeNames(cls, cls.__annotations__.values(), {})

    def properties(self) -> Iterable[Property]:
        hints = self._names.type_hints()
        return [Property(name, hint, has_default=self._may_be_absent(name, hint)) for name, hint in hints.items()]

    def _may_be_absent(self, name: str, hint: Any) -> bool:
        if get_origin(hint) in (Required, NotRequired):  # which the class itself cannot see in annotations that are strings
            return get_origin(hint) is NotRequired
        return name not in self._cls.__required_keys__


class ClassRecord(Record):
    """A record whose values are instances of a class, with properties as attributes."""

    def __init__(self, cls: type, description: str | None) -> None:
        self.cls, self.name, self.description = cls, cls.__name__, description

    @abstractmethod
    def names(self) -> Iterable[str]:
        """The names of the properties."""

    def construct_partial(self, structure: Structure, identity: GenerationID, values: dict[str, Any]) -> Any:
        return self.partial_class(generation_id=identity, **values)

    def holds(self, value: Any) -> bool:
        return isinstance(value, self.cls)

    def read(self, value: Any, name: str) -> Any:
        return getattr(value, name)

    @cached_property
    def partial_class(self) -> type:
        """The class of snapshots: every field may be None, and `generation_id` tells one element from another."""
        identity = (
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
        return dataclasses.make_dataclass("PartiallyGenerated", [*fields, identity], namespace=namespace, kw_only=True)


class DataclassRecord(ClassRecord):
    """A dataclass; `guide()` describes and narrows its fields."""

    def __init__(self, cls: Any, description: str | None = None, local_names: Mapping[str, Any] | None = None) -> None:
        super().__init__(cls, description)
        self._fields = [field for field in dataclasses.fields(cls) if field.init]
        self._type_names = TypeNames(cls, (field.type for field in self._fields), local_names or {})

    def names(self) -> Iterable[str]:
        return [field.name for field in self._fields]

    def properties(self) -> Iterable[Property]:
        hints = self._type_names.type_hints()
        return [_field_property(field, hints[field.name]) for field in self._fields]

    def construct(self, values: dict[str, Any]) -> Any:
        return self.cls(**values)


def _field_property(field: dataclasses.Field[Any], annotation: Any) -> Property:
    field_guide = FieldGuide.of(field)
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return Property(
        field.name,
        annotation,
        field_guide.description,
        field_guide.guides,
        has_default,
        None if field.default is dataclasses.MISSING else field.default,
    )
