"""Schemas put together at run time, of parts that may refer to each other by name. Values under them are plain JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.annotations import value_type
from openafm.framework.schema.guides import GenerationGuide
from openafm.framework.schema.records import DictRecord
from openafm.framework.schema.structure import Property, Structure
from openafm.framework.schema.types.base import Definition, Text, ValueType
from openafm.framework.schema.types.composite import Array, OneOf
from openafm.tokenizer.conversation import JsonSchema


class DuplicateTypeError(InvalidGenerationSchemaError):
    """Two different types of one name in one schema."""


class DuplicatePropertyError(InvalidGenerationSchemaError):
    """Two properties of one name in one object."""


class EmptyTypeChoicesError(InvalidGenerationSchemaError):
    """A choice of nothing."""


class UndefinedReferencesError(InvalidGenerationSchemaError):
    """References to names that neither the root nor a dependency has."""


@dataclass(frozen=True)
class DynamicProperty:
    """A property of a dynamic object; `DynamicGenerationSchema.Property`."""

    name: str
    schema: DynamicGenerationSchema
    description: str | None = None
    is_optional: bool = False


class DynamicGenerationSchema(ABC):
    """A part of a schema: made by one of the class methods, used by `GenerationSchema(root=..., dependencies=[...])`.

    dynamic = DynamicGenerationSchema
    parts = dynamic.array_of(dynamic.reference_to("Item"))
    item = dynamic.object(
        "Item", properties=[dynamic.Property("name", dynamic.of(str)), dynamic.Property("parts", parts)]
    )
    schema = GenerationSchema(root=item)
    """

    Property = DynamicProperty

    name: str | None = None
    parts: Sequence[DynamicGenerationSchema] = ()

    @staticmethod
    def object(
        name: str, description: str | None = None, properties: Iterable[DynamicProperty] = ()
    ) -> DynamicGenerationSchema:
        """An object of these properties, in the order of generation.

        Raises:
            DuplicatePropertyError: two properties of one name.
        """
        return _Object(name, description, tuple(properties))

    @staticmethod
    def array_of(
        item: DynamicGenerationSchema, minimum_elements: int | None = None, maximum_elements: int | None = None
    ) -> DynamicGenerationSchema:
        """A list of `item`, of so many of them.

        Raises:
            ValueError: a number below 0.
            UnsupportedGuideError: numbers that leave no list.
        """
        return _ArrayOf(item, minimum_elements, maximum_elements)

    @staticmethod
    def any_of(
        choices: Iterable[DynamicGenerationSchema] | Iterable[str], name: str | None = None, description: str | None = None
    ) -> DynamicGenerationSchema:
        """One of these schemas, or one of these strings. With a name, others may refer to it.

        Raises:
            EmptyTypeChoicesError: no choices.
        """
        return _AnyOf(tuple(choices), name, description)

    @staticmethod
    def of(type_class: Any, guides: Iterable[GenerationGuide] = ()) -> DynamicGenerationSchema:
        """A value of a type that can be generated (`annotations.py`), under guides.

        Raises:
            InvalidGenerationSchemaError: a type that cannot be generated.
            UnsupportedGuideError: a guide that does not fit it.
        """
        return _Of(type_class, tuple(guides))

    @staticmethod
    def reference_to(name: str) -> DynamicGenerationSchema:
        """What is called `name` in the same schema."""
        return _ReferenceTo(name)

    @abstractmethod
    def value_type(self, types: DynamicTypes) -> ValueType:
        """The value type of this part, among `types`."""

    def choices(self, types: DynamicTypes) -> Iterable[DynamicGenerationSchema]:
        """What a value may be instead, without anything around it."""
        return ()


class DynamicTypes:
    """The named parts of one schema, and the definitions that they become.

    Raises:
        DuplicateTypeError, UndefinedReferencesError: as their names say.
        InvalidGenerationSchemaError: a choice that is one of its own choices.
    """

    def __init__(self, root: DynamicGenerationSchema, dependencies: Iterable[DynamicGenerationSchema]) -> None:
        parts = list(dict.fromkeys(_walk([root, *dependencies])))
        named = [part for part in parts if part.name is not None]
        names = Counter(part.name for part in named)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise DuplicateTypeError(
                f"several types are called {', '.join(map(repr, repeated))}; rename all but one of them"
            )
        self.by_name = {part.name: part for part in named}
        wanted = {part.target: None for part in parts if isinstance(part, _ReferenceTo)}
        if undefined := [name for name in wanted if name not in self.by_name]:
            raise UndefinedReferencesError(
                f"nothing is called {', '.join(map(repr, undefined))}; add it to the dependencies"
                f" (there are: {', '.join(map(repr, self.by_name)) or 'none'})"
            )
        for part in parts:
            self._require_an_outcome(part)
        self._definitions: dict[DynamicGenerationSchema, Definition] = {}
        self.root = root.value_type(self)
        for part in dependencies:
            part.value_type(self)

    def definition(self, part: DynamicGenerationSchema, make: Callable[[], Definition]) -> Definition:
        """The definition of a named part, always the same one."""
        if part not in self._definitions:
            self._definitions[part] = make()
        return self._definitions[part]

    def _require_an_outcome(self, start: DynamicGenerationSchema) -> None:
        seen: set[DynamicGenerationSchema] = set()
        waiting = list(start.choices(self))
        while waiting:
            part = waiting.pop()
            if part is start:
                raise InvalidGenerationSchemaError(
                    f"{start.name or 'a choice'} is one of its own choices; leave that one out"
                )
            if part not in seen:
                seen.add(part)
                waiting += part.choices(self)


class _Object(DynamicGenerationSchema):
    def __init__(self, name: str, description: str | None, properties: tuple[DynamicProperty, ...]) -> None:
        repeated = [name for name, count in Counter(prop.name for prop in properties).items() if count > 1]
        if repeated:
            raise DuplicatePropertyError(f"{name} has several properties called {repeated[0]!r}; rename all but one of them")
        self.name, self.description, self.properties = name, description, properties
        self.parts = [prop.schema for prop in properties]

    def value_type(self, types: DynamicTypes) -> ValueType:
        return types.definition(self, lambda: Structure(_DynamicRecord(self, types)))


class _DynamicRecord(DictRecord):
    def __init__(self, part: _Object, types: DynamicTypes) -> None:
        assert part.name is not None
        self.name, self.description = part.name, part.description
        self._part, self._types = part, types

    def properties(self) -> Iterable[Property]:
        return [
            Property(prop.name, prop.schema.value_type(self._types), prop.description, has_default=prop.is_optional)
            for prop in self._part.properties
        ]


class _ArrayOf(DynamicGenerationSchema):
    def __init__(self, item: DynamicGenerationSchema, least: int | None, most: int | None) -> None:
        self.item, self.parts = item, (item,)
        self._guides = [
            make(number)
            for make, number in ((GenerationGuide.min_items, least), (GenerationGuide.max_items, most))
            if number is not None
        ]
        _guided(Array(item=Text()), self._guides)

    def value_type(self, types: DynamicTypes) -> ValueType:
        return _guided(Array(item=self.item.value_type(types)), self._guides)


class _AnyOf(DynamicGenerationSchema):
    def __init__(
        self, choices: tuple[DynamicGenerationSchema | str, ...], name: str | None, description: str | None
    ) -> None:
        if not choices:
            raise EmptyTypeChoicesError(f"{name or 'a choice'} has nothing to choose from")
        self.name, self.description = name, description
        self.parts = [choice for choice in choices if isinstance(choice, DynamicGenerationSchema)]
        self.texts = [choice for choice in choices if isinstance(choice, str)]
        if len(self.parts) + len(self.texts) < len(choices):
            raise InvalidGenerationSchemaError("choices are dynamic schemas or strings")

    def choices(self, types: DynamicTypes) -> Iterable[DynamicGenerationSchema]:
        return self.parts

    def value_type(self, types: DynamicTypes) -> ValueType:
        if self.name is None:
            return self._choice(types)
        name = self.name
        return types.definition(self, lambda: _NamedChoice(name, self.description, lambda: self._choice(types)))

    def _choice(self, types: DynamicTypes) -> ValueType:
        members = [part.value_type(types) for part in self.parts]
        if self.texts:
            members.append(Text().with_guide(GenerationGuide.anyOf(self.texts)))
        return members[0] if len(members) == 1 else OneOf(members=tuple(members))


class _NamedChoice(Definition):
    """A choice that others may refer to; its members are worked out later, since they may refer to it."""

    def __init__(self, name: str, description: str | None, choice: Callable[[], ValueType]) -> None:
        self.name, self.description, self._make_choice = name, description, choice

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return self._choice.kinds

    def definition_schema(self, refer: Callable[[Definition], JsonSchema], description: str | None = None) -> JsonSchema:
        described = description if description is not None else self.description
        title = {"title": self.name} | ({} if described is None else {"description": described})
        return title | self._choice.json_schema(refer)

    def decode(self, value: Any, path: str) -> Any:
        return self._choice.decode(value, path)

    def decode_partial(self, value: Any, *arguments: Any) -> Any:
        return self._choice.decode_partial(value, *arguments)

    def encode(self, value: Any) -> Any:
        return self._choice.encode(value)

    def parts(self) -> Iterable[Definition]:
        return self._choice.definitions()

    def ends(self, finite: Set[Definition]) -> bool:
        return self._choice.is_finite(finite)

    @cached_property
    def _choice(self) -> ValueType:
        return self._make_choice()


class _Of(DynamicGenerationSchema):
    def __init__(self, type_class: Any, guides: tuple[GenerationGuide, ...]) -> None:
        self._value_type = _guided(value_type(type_class), guides)

    def value_type(self, types: DynamicTypes) -> ValueType:
        return self._value_type


class _ReferenceTo(DynamicGenerationSchema):
    def __init__(self, target: str) -> None:
        self.target = target

    def choices(self, types: DynamicTypes) -> Iterable[DynamicGenerationSchema]:
        return [types.by_name[self.target]]

    def value_type(self, types: DynamicTypes) -> ValueType:
        return types.by_name[self.target].value_type(types)


def _walk(parts: Iterable[DynamicGenerationSchema]) -> Iterator[DynamicGenerationSchema]:
    for part in parts:
        yield part
        yield from _walk(part.parts)


def _guided(declared: ValueType, guides: Iterable[GenerationGuide]) -> ValueType:
    for guide in guides:
        declared = declared.with_guide(guide)
    return declared
