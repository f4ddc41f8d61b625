"""From a Python annotation to a value type.

| annotation | value |
|---|---|
| `str`, `int`, `float`, `bool`, `datetime.date` | itself (numbers up to 1e18; dates as YYYY-MM-DD) |
| `Literal["a", 1]` | one of the values |
| an `Enum` | one of its values where all are text, else one of its names |
| `list[T]`, nested at will | list |
| `T | None`, `Optional[T]` | a property that may be left out; null inside a list or union |
| a generable class, also by name and recursively | object |
| `A | B` | a union: structures tagged (see `composite_types.Tagged`), scalars as they are |
| `Annotated[T, GenerationGuide...]` | T under the guides |
"""

from __future__ import annotations

import datetime
import types
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

from openafm.framework.composite_types import Array, Nullable, OneOf, Tagged
from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.guides import GenerationGuide
from openafm.framework.value_types import Boolean, Choices, Date, Number, Text, ValueType

if TYPE_CHECKING:
    from openafm.framework.structure import Structure

STRUCTURE = "__openafm_structure__"  # attribute of a generable class
PARTIAL_OF = "__openafm_partial_of__"  # attribute of its class of snapshots

_SCALARS: dict[Any, ValueType] = {
    str: Text(),
    int: Number(is_integer=True),
    float: Number(is_integer=False),
    bool: Boolean(),
    datetime.date: Date(),
}


def value_type(annotation: Any) -> ValueType:
    """The value type of an annotation whose names are resolved.

    Raises:
        InvalidGenerationSchemaError: a type that cannot be generated; the message lists those that can.
        UnsupportedGuideError: a guide inside `Annotated` that does not fit.
    """
    if isinstance(annotation, type) and STRUCTURE in vars(annotation):
        structure: ValueType = vars(annotation)[STRUCTURE]
        return structure
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin is Literal:
        return _nullable(_literal([value for value in arguments if value is not None]), None in arguments)
    if origin is list:
        return Array(item=value_type(arguments[0]))
    if origin in (Union, types.UnionType):
        members = [argument for argument in arguments if argument is not types.NoneType]
        return _nullable(_union([value_type(member) for member in members]), len(members) < len(arguments))
    try:
        return _SCALARS[annotation]
    except (KeyError, TypeError):
        raise InvalidGenerationSchemaError(
            f"invalid type {_name(annotation)}: a generation schema is made of str, int, float, bool, datetime.date,"
            " Literal, Enum, list[...], optionals, unions and classes with @generable"
        ) from None


def _nullable(value: ValueType, is_nullable: bool) -> ValueType:
    return Nullable(value=value) if is_nullable else value


def _annotated(annotation: Any, metadata: Iterable[Any]) -> ValueType:
    narrowed = value_type(annotation)
    for guide in metadata:
        if isinstance(guide, GenerationGuide):
            narrowed = narrowed.with_guide(guide)
    return narrowed


def _enum(cls: type[Enum]) -> Choices:
    members = list(cls)
    if not members:
        raise InvalidGenerationSchemaError(f"the Enum {cls.__name__} has no members to choose from")
    by_value = all(type(member.value) is str for member in members)
    return Choices(
        choices=tuple((member.value if by_value else member.name, member) for member in members), label=cls.__name__
    )


def _literal(values: list[Any]) -> Choices:
    for value in values:
        if type(value) not in (str, int, bool):
            raise InvalidGenerationSchemaError(f"a Literal of {value!r} cannot be generated; use str, int or bool")
    if not values:
        raise InvalidGenerationSchemaError("a Literal needs a value other than None")
    return Choices(choices=tuple((value, value) for value in values), label=f"Literal[{', '.join(map(repr, values))}]")


def _union(members: list[ValueType]) -> ValueType:
    if len(members) == 1:
        return members[0]
    members = [part for member in members for part in (member.members if isinstance(member, OneOf) else (member,))]
    names = [str(member) for member in members if member.kinds == {"object"}]
    if len(set(names)) < len(names):
        raise InvalidGenerationSchemaError(f"a union of classes of the same name, {max(names, key=names.count)}; rename one")
    if sum("array" in member.kinds for member in members) > 1:
        raise InvalidGenerationSchemaError("a union of several lists cannot be told apart; use a list of a union")
    return OneOf(members=tuple(_tagged(member) for member in members))


def _tagged(member: ValueType) -> ValueType:
    is_structure = member.kinds == {"object"} and not isinstance(member, Tagged)
    return Tagged(structure=cast("Structure", member)) if is_structure else member


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
