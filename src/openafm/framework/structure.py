"""A generable class as a value type: its properties, and the way from JSON to an instance and back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints
from weakref import WeakValueDictionary

from openafm.framework.annotations import PARTIAL_OF, value_type
from openafm.framework.composite_types import Nullable
from openafm.framework.errors import DecodingFailureError, InvalidGenerationSchemaError, UnsupportedGuideError
from openafm.framework.generation_id import GenerationID
from openafm.framework.guides import FieldGuide, GenerationGuide
from openafm.framework.value_types import ValueType, mismatch
from openafm.tokenizer.conversation import JsonSchema

_local_classes: WeakValueDictionary[str, type] = WeakValueDictionary()  # generable classes inside functions, by full name


@dataclass(frozen=True, kw_only=True)
class Property:
    """One property of a structure, in declared order, which is the order of generation."""

    name: str
    type_class: Any
    value_type: ValueType
    description: str | None
    guides: tuple[GenerationGuide, ...]
    is_required: bool
    has_default: bool
    default: Any

    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        schema = self.value_type.json_schema(refer)
        if self.description is not None:
            schema = schema | {"description": self.description}
        if self.default is not None:
            schema = schema | {"default": self.value_type.encode(self.default)}
        return schema


class Structure(ValueType):
    """What `@generable` knows about a class. Compared by identity, like the class."""

    kinds = frozenset({"object"})

    def __init__(self, cls: type, description: str | None, local_names: Mapping[str, Any]) -> None:
        self.cls, self.description = cls, description
        self.name = cls.__name__
        self.partial_class = _partial_class(self)
        self._fields = [field for field in dataclasses.fields(cls) if field.init]
        self._names = _Names(cls, self._fields, local_names)

    def __str__(self) -> str:
        return self.name

    @cached_property
    def properties(self) -> tuple[Property, ...]:
        """The properties, with their types resolved.

        Raises:
            InvalidGenerationSchemaError: a type that is unknown, or cannot be generated.
            UnsupportedGuideError: a guide that does not fit its type, or contradicts another.
        """
        hints = self._names.type_hints()
        return tuple(self._property(field, hints[field.name]) for field in self._fields)

    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        return refer(self)

    def object_schema(self, refer: Callable[[Structure], JsonSchema], description: str | None = None) -> JsonSchema:
        """The schema of the object itself, which references stand for."""
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
            return self.cls(**values)
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
        return self.partial_class(generation_id=identity, **values)

    def encode(self, value: Any) -> Any:
        if not isinstance(value, self.cls):
            raise mismatch(self, value, "$")
        values = {prop.name: getattr(value, prop.name) for prop in self.properties}
        return {
            prop.name: prop.value_type.encode(values[prop.name])
            for prop in self.properties
            if prop.is_required or values[prop.name] is not None
        }

    def structures(self) -> Iterable[Structure]:
        return (self,)

    def is_finite(self, finite: Set[Structure]) -> bool:
        return self in finite

    def _present(self, value: Any, path: str) -> list[Property]:
        if not isinstance(value, dict):
            raise mismatch(self, value, path)
        unknown = value.keys() - {prop.name for prop in self.properties}
        if unknown:
            raise DecodingFailureError(f"{path}: {self.name} has no property '{min(unknown)}'")
        return [prop for prop in self.properties if prop.name in value]

    def _property(self, field: dataclasses.Field[Any], annotation: Any) -> Property:
        field_guide = FieldGuide.of(field)
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        default = None if field.default is dataclasses.MISSING else field.default
        try:
            declared = value_type(annotation)
            for guide in field_guide.guides:
                declared = declared.with_guide(guide)
            if field.default is not dataclasses.MISSING:
                declared.encode(default)
        except (InvalidGenerationSchemaError, UnsupportedGuideError) as error:
            raise type(error)(f"{self.name}.{field.name}: {error}") from error
        except DecodingFailureError as error:
            raise InvalidGenerationSchemaError(
                f"{self.name}.{field.name}: the default is not of its type ({error})"
            ) from error
        return Property(
            name=field.name,
            type_class=annotation,
            value_type=declared.value if isinstance(declared, Nullable) else declared,
            description=field_guide.description,
            guides=field_guide.guides,
            is_required=not has_default and not isinstance(declared, Nullable),
            has_default=has_default,
            default=default,
        )


class _Names:
    """Resolves the annotations of a class, also of one inside a function, and of names that are defined only later."""

    def __init__(self, cls: type, fields: Iterable[dataclasses.Field[Any]], local_names: Mapping[str, Any]) -> None:
        self._cls = cls
        self._scope = f"{cls.__module__}.{cls.__qualname__}".removesuffix(cls.__name__)
        self._hints: dict[str, Any] | None = None
        is_local = "." in cls.__qualname__
        if is_local:
            _local_classes[self._scope + cls.__name__] = cls
        mentioned = set(re.findall(r"\w+", " ".join(str(field.type) for field in fields))) if is_local else set()
        self._local_names = {name: local_names[name] for name in mentioned & local_names.keys()}

    def type_hints(self) -> dict[str, Any]:
        """The types of the fields by name.

        Raises:
            InvalidGenerationSchemaError: a name that means nothing where the class stands.
        """
        if self._hints is None:
            siblings = {name.removeprefix(self._scope): cls for name, cls in _local_classes.items()}
            names = siblings | self._local_names | {self._cls.__name__: self._cls}
            try:
                self._hints = get_type_hints(self._cls, localns=names, include_extras=True)
            except Exception as error:  # evaluates the caller's annotations: anything can come out
                raise InvalidGenerationSchemaError(
                    f"the type hints of {self._cls.__name__} cannot be resolved ({error});"
                    " use types that are defined where the class stands"
                ) from error
            self._local_names = {}  # no longer needed
        return self._hints


def _partial_class(structure: Structure) -> type:
    """The class of snapshots: every field may be None, and `generation_id` tells one element from another."""
    cls = structure.cls
    identity = ("generation_id", GenerationID, dataclasses.field(default_factory=GenerationID, compare=False, repr=False))
    fields = [(field.name, Any, None) for field in dataclasses.fields(cls) if field.init]
    namespace = {
        PARTIAL_OF: structure,
        "__module__": cls.__module__,
        "__qualname__": f"{cls.__qualname__}.PartiallyGenerated",
    }
    return dataclasses.make_dataclass("PartiallyGenerated", [*fields, identity], namespace=namespace, kw_only=True)
