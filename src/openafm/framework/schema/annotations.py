"""From a Python annotation to a value type.

| annotation | value |
|---|---|
| `str`, `int`, `float`, `bool` | itself (numbers up to 1e18) |
| `Decimal` | a number, of 15 significant digits for certain |
| `datetime.date`, `datetime.datetime`, `datetime.time` | YYYY-MM-DD; date and time with an offset; time without |
| `uuid.UUID`; `openafm.URL` and pydantic's `AnyUrl`, `AnyHttpUrl`, `HttpUrl` | strings; addresses are of http or https |
| `Literal["a", 1]` | one of the values |
| an `Enum` | one of its values where all are text, else one of its names |
| `list[T]`, `tuple[T, ...]`, nested at will | list |
| `dict[str, T]` | object of any names |
| `T | None`, `Optional[T]` | a property that may be left out; null inside a list or union |
| a generable class, a dataclass, a pydantic model, a `TypedDict`; also by name and recursively | object |
| `A | B` | a union: structures tagged (see `composite_types.Tagged`), scalars as they are |
| `Annotated[T, ...]` | T under the guides or pydantic's constraints; a text there describes a property |
| `Any`, and `list` and `dict` by themselves | any JSON |
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import threading
import types
import uuid
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, NotRequired, Required, Union, get_args, get_origin

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.types.base import AnyJson, Boolean, Choices, Definition, Text, ValueType
from openafm.framework.schema.types.composite import Array, Mapping, Nullable, OneOf, Tagged
from openafm.framework.schema.types.formatted import ADDRESS, DATE, DATE_TIME, IDENTIFIER, LOCAL_TIME, URL, url_type
from openafm.framework.schema.types.numbers import DecimalNumber, Number
from openafm.framework.schema.types.pydantic_types import constraint_guides, field_description, is_model, is_url

if TYPE_CHECKING:
    from openafm.framework.schema.structure import Structure

STRUCTURE = "__openafm_structure__"  # attribute of a class whose values can be generated
PARTIAL_OF = "__openafm_partial_of__"  # attribute of its class of snapshots: that class

_SCALARS: dict[Any, ValueType] = {
    Any: AnyJson(),
    str: Text(),
    int: Number(is_integer=True),
    float: Number(is_integer=False),
    bool: Boolean(),
    Decimal: DecimalNumber(),
    datetime.date: DATE,
    datetime.datetime: DATE_TIME,
    datetime.time: LOCAL_TIME,
    uuid.UUID: IDENTIFIER,
    URL: ADDRESS,
    list: Array(item=AnyJson()),
    dict: Mapping(value=AnyJson()),
}
_structures_lock = threading.Lock()


def value_type(annotation: Any) -> ValueType:
    """The value type of an annotation whose names are resolved. A value type stands for itself.

    Raises:
        InvalidGenerationSchemaError: a type that cannot be generated; the message lists those that can.
        UnsupportedGuideError: a guide or constraint inside `Annotated` that does not fit.
    """
    if isinstance(annotation, ValueType):
        return annotation
    if isinstance(annotation, NewType):
        return value_type(annotation.__supertype__)
    if isinstance(annotation, type) and not get_args(annotation):
        return _class(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (Required, NotRequired):
        return value_type(arguments[0])
    if origin is Literal:
        return _nullable(_literal([value for value in arguments if value is not None]), None in arguments)
    if origin in (list, collections.abc.Sequence):
        return Array(item=value_type(arguments[0] if arguments else Any))
    if origin is tuple and arguments[1:] == (...,):
        return Array(item=value_type(arguments[0]), container=tuple)
    if origin in (dict, collections.abc.Mapping) and arguments[:1] in ((), (str,)):
        return Mapping(value=value_type(arguments[1] if arguments else Any))
    if origin in (Union, types.UnionType):
        members = [argument for argument in arguments if argument is not types.NoneType]
        return _nullable(_union([value_type(member) for member in members]), len(members) < len(arguments))
    return _scalar(annotation)


def annotated_description(annotation: Any) -> str | None:
    """The text inside `Annotated`, which describes what has that type; None where there is none."""
    if get_origin(annotation) is not Annotated:
        return None
    texts = [item if isinstance(item, str) else field_description(item) for item in annotation.__metadata__]
    return next((text for text in texts if text is not None), None)


def _class(cls: type) -> ValueType:
    if issubclass(cls, Enum):
        return _enum(cls)
    if is_url(cls):
        return url_type(cls)
    return _structure(cls) or _scalar(cls)


def _structure(cls: type) -> Structure | None:
    """The structure of a class, always the same one; None where the class is none of those that have one."""
    from openafm.framework.schema.records import DataclassRecord, TypedDictRecord  # they hold annotations in turn
    from openafm.framework.schema.structure import Structure
    from openafm.framework.schema.types.pydantic_models import ModelRecord

    with _structures_lock:
        if STRUCTURE not in vars(cls):
            if is_model(cls):
                setattr(cls, STRUCTURE, Structure(ModelRecord(cls)))
            elif dataclasses.is_dataclass(cls):
                setattr(cls, STRUCTURE, Structure(DataclassRecord(cls)))
            elif issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
                setattr(cls, STRUCTURE, Structure(TypedDictRecord(cls)))
        found: Structure | None = vars(cls).get(STRUCTURE)
        return found


def _scalar(annotation: Any) -> ValueType:
    try:
        return _SCALARS[annotation]
    except (KeyError, TypeError):
        raise InvalidGenerationSchemaError(
            f"invalid type {_name(annotation)}: a generation schema is made of str, int, float, bool, Decimal, dates, times,"
            " UUID, URL, Literal, Enum, list[...], tuple[..., ...], dict[str, ...], optionals, unions, dataclasses,"
            " pydantic models, TypedDicts and classes with @generable"
        ) from None


def _nullable(value: ValueType, is_nullable: bool) -> ValueType:
    return Nullable(value=value) if is_nullable else value


def _annotated(annotation: Any, metadata: Iterable[Any]) -> ValueType:
    narrowed = value_type(annotation)
    for item in metadata:
        for guide in constraint_guides(item):
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
    names = [str(member) for member in members if isinstance(member, Definition | Tagged)]
    if len(set(names)) < len(names):
        raise InvalidGenerationSchemaError(f"a union of classes of the same name, {max(names, key=names.count)}; rename one")
    if sum("array" in member.kinds for member in members) > 1:
        raise InvalidGenerationSchemaError("a union of several lists cannot be told apart; use a list of a union")
    if names and any("object" in member.kinds for member in members if not isinstance(member, Definition | Tagged)):
        raise InvalidGenerationSchemaError("a union of classes and dict cannot be told apart; put the dict into a class")
    return OneOf(members=tuple(_tagged(member) for member in members))


def _tagged(member: ValueType) -> ValueType:
    return Tagged(structure=member) if isinstance(member, Definition) else member


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
