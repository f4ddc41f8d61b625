"""Schemas built at run time from parts that may refer to each other by name. Their values are plain JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.annotations import structure_of, value_type
from openafm.framework.schema.guides import GenerationGuide
from openafm.framework.schema.records import DictRecord
from openafm.framework.schema.structure import SchemaProperty
from openafm.framework.schema.types.base import Definition, ValueType
from openafm.framework.schema.types.composite import Array, OneOf
from openafm.framework.schema.types.plain import Text
from openafm.tokenizer.conversation import JsonSchema


class DuplicateTypeError(InvalidGenerationSchemaError):
    """Two types of a schema share a name."""


class DuplicatePropertyError(InvalidGenerationSchemaError):
    """Two properties of an object share a name."""


class EmptyTypeChoicesError(InvalidGenerationSchemaError):
    """A choice has no alternatives."""


class UndefinedReferencesError(InvalidGenerationSchemaError):
    """A reference names neither the root nor a dependency."""


@dataclass(frozen=True)
class DynamicProperty:
    """Declare a property of a dynamic object. Also available as `DynamicGenerationSchema.Property`."""

    name: str
    schema: DynamicGenerationSchema
    description: str | None = None
    is_optional: bool = False


class DynamicGenerationSchema(ABC):
    """Hold a part of a schema, made by a class method. `GenerationSchema(root=..., dependencies=[...])` assembles parts:

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
        """Return an object of these properties, in the order of generation.

        Raises:
            DuplicatePropertyError: two properties share a name.
        """
        return _Object(name, description, tuple(properties))

    @staticmethod
    def array_of(
        item: DynamicGenerationSchema, minimum_elements: int | None = None, maximum_elements: int | None = None
    ) -> DynamicGenerationSchema:
        """Return a list of `item`, with optional bounds on its length.

        Raises:
            ValueError: a bound is negative.
            UnsupportedGuideError: the minimum exceeds the maximum.
        """
        return _ArrayOf(item, minimum_elements, maximum_elements)

    @staticmethod
    def any_of(
        choices: Iterable[DynamicGenerationSchema] | Iterable[str], name: str | None = None, description: str | None = None
    ) -> DynamicGenerationSchema:
        """Return a choice among schemas or strings. Other parts may refer to a named choice.

        Raises:
            EmptyTypeChoicesError: there are no choices.
        """
        return _AnyOf(tuple(choices), name, description)

    @staticmethod
    def of(type_class: Any, guides: Iterable[GenerationGuide] = ()) -> DynamicGenerationSchema:
        """Return a value of a type (`annotations.py`), narrowed by guides.

        Raises:
            InvalidGenerationSchemaError: values of the type cannot be generated.
            UnsupportedGuideError: a guide does not fit the type.
        """
        return _Of(type_class, tuple(guides))

    @staticmethod
    def reference_to(name: str) -> DynamicGenerationSchema:
        """Return a reference to the part called `name` in the same schema."""
        return _ReferenceTo(name)

    @abstractmethod
    def value_type(self, types: DynamicTypes) -> ValueType:
        """Return the value type of this part within `types`."""

    def choices(self, types: DynamicTypes) -> Iterable[DynamicGenerationSchema]:
        """Return the alternatives that a value of this part may take directly."""
        return ()


class DynamicTypes:
    """Resolve the named parts of one schema to definitions.

    Raises:
        DuplicateTypeError: two parts share a name.
        UndefinedReferencesError: a reference names no part.
        InvalidGenerationSchemaError: a choice is one of its own alternatives.
    """

    def __init__(self, root: DynamicGenerationSchema, dependencies: Iterable[DynamicGenerationSchema]) -> None:
        parts = list(dict.fromkeys(_walk([root, *dependencies])))
        named = [part for part in parts if part.name is not None]
        names = Counter(part.name for part in named)
        if repeated := [name for name, count in names.items() if count > 1]:
            raise DuplicateTypeError(f"several types are called {', '.join(map(repr, repeated))}; rename all but one")
        self.by_name = {part.name: part for part in named}
        wanted = {part.target: None for part in parts if isinstance(part, _ReferenceTo)}
        if undefined := [name for name in wanted if name not in self.by_name]:
            raise UndefinedReferencesError(
                f"no type is called {', '.join(map(repr, undefined))}; add it to the dependencies"
                f" (known types: {', '.join(map(repr, self.by_name)) or 'none'})"
            )
        for part in parts:
            self._reject_circular_choice(part)
        self._definitions: dict[DynamicGenerationSchema, Definition] = {}
        self.root = root.value_type(self)
        for part in dependencies:
            part.value_type(self)

    def definition(self, part: DynamicGenerationSchema, make: Callable[[], Definition]) -> Definition:
        """Return the definition of a named part; the same object for each call."""
        if part not in self._definitions:
            self._definitions[part] = make()
        return self._definitions[part]

    def _reject_circular_choice(self, start: DynamicGenerationSchema) -> None:
        seen: set[DynamicGenerationSchema] = set()
        pending = list(start.choices(self))
        while pending:
            part = pending.pop()
            if part is start:
                raise InvalidGenerationSchemaError(
                    f"{start.name or 'a choice'} is one of its own alternatives; remove it from them"
                )
            if part not in seen:
                seen.add(part)
                pending += part.choices(self)


class _Object(DynamicGenerationSchema):
    def __init__(self, name: str, description: str | None, properties: tuple[DynamicProperty, ...]) -> None:
        repeated = [name for name, count in Counter(prop.name for prop in properties).items() if count > 1]
        if repeated:
            raise DuplicatePropertyError(f"{name} has several properties called {repeated[0]!r}; rename all but one")
        self.name, self.description, self.properties = name, description, properties
        self.parts = [prop.schema for prop in properties]

    def value_type(self, types: DynamicTypes) -> ValueType:
        return types.definition(self, lambda: structure_of(_DynamicRecord(self, types)))


class _DynamicRecord(DictRecord):
    def __init__(self, part: _Object, types: DynamicTypes) -> None:
        assert part.name is not None
        self.name, self.description = part.name, part.description
        self._part, self._types = part, types

    def properties(self) -> Iterable[SchemaProperty]:
        return [
            SchemaProperty(prop.name, prop.schema.value_type(self._types), prop.description, has_default=prop.is_optional)
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
            raise EmptyTypeChoicesError(f"{name or 'a choice'} has no alternatives; add at least one")
        self.name, self.description = name, description
        self.parts = [choice for choice in choices if isinstance(choice, DynamicGenerationSchema)]
        self.texts = [choice for choice in choices if isinstance(choice, str)]
        if len(self.parts) + len(self.texts) < len(choices):
            raise InvalidGenerationSchemaError("a choice takes only dynamic schemas and strings")

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
    """A choice that other parts may refer to. Its members resolve on first use, since they may refer back to it."""

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

    def is_body_finite(self, finite: Set[Definition]) -> bool:
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
