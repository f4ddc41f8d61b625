"""Value types of Python annotations.

| annotation | value |
|---|---|
| `str`, `int`, `float`, `bool` | the same (numbers up to 1e18) |
| `Decimal` | a number of up to 15 significant digits |
| `datetime.date`, `datetime.datetime`, `datetime.time` | YYYY-MM-DD; date and time with an offset; time without one |
| `uuid.UUID`; `openafm.URL` and pydantic's `AnyUrl`, `AnyHttpUrl`, `HttpUrl` | strings; addresses use http or https |
| `Literal["a", 1]` | one of the values |
| an `Enum` | one of its values if all are text, else one of its names |
| `list[T]`, `tuple[T, ...]`, nested | list |
| `dict[str, T]` | object with arbitrary names |
| `T | None`, `Optional[T]` | an optional property; null inside a list or union |
| a generable class, a dataclass, a pydantic model, a `TypedDict`; also by name and recursively | object |
| `A | B` | a union: structures tagged (see `types/composite.py`), scalars without a tag |
| `Annotated[T, ...]` | T narrowed by guides or pydantic's constraints; a text describes the property |
| `Any`, bare `list` and `dict` | any JSON |
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
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, Union, get_args, get_origin

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.pydantic_metadata import constraint_guides, is_model, is_url
from openafm.framework.schema.pydantic_record import ModelRecord
from openafm.framework.schema.records import DataclassRecord, TypedDictRecord
from openafm.framework.schema.structure import Record, Structure
from openafm.framework.schema.types.base import Definition, ValueType
from openafm.framework.schema.types.composite import Array, Mapping, Nullable, OneOf, Tagged
from openafm.framework.schema.types.formatted import ADDRESS, DATE, DATE_TIME, IDENTIFIER, LOCAL_TIME, URL, url_type
from openafm.framework.schema.types.numbers import DecimalNumber, Number
from openafm.framework.schema.types.plain import AnyJson, Boolean, Choices, Text

STRUCTURE = "__openafm_structure__"  # attribute of a class: its structure

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
    """Return the value type of an annotation whose names are resolved. A value type is returned unchanged.

    Raises:
        InvalidGenerationSchemaError: values of the type cannot be generated; the message lists the supported types.
        UnsupportedGuideError: a guide or constraint inside `Annotated` does not fit the type.
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


def structure_of(record: Record) -> Structure:
    """Return the structure of a record; its annotations resolve through `value_type`."""
    return Structure(record, value_type)


def _class(cls: type) -> ValueType:
    if issubclass(cls, Enum):
        return _enum(cls)
    if is_url(cls):
        return url_type(cls)
    return _class_structure(cls) or _scalar(cls)


def _class_structure(cls: type) -> Structure | None:
    """Return the structure of a class, the same object for each call; None for a class of another kind."""
    with _structures_lock:
        if STRUCTURE not in vars(cls):
            if is_model(cls):
                setattr(cls, STRUCTURE, structure_of(ModelRecord(cls)))
            elif dataclasses.is_dataclass(cls):
                setattr(cls, STRUCTURE, structure_of(DataclassRecord(cls)))
            elif issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
                setattr(cls, STRUCTURE, structure_of(TypedDictRecord(cls)))
        found: Structure | None = vars(cls).get(STRUCTURE)
        return found


def _scalar(annotation: Any) -> ValueType:
    try:
        return _SCALARS[annotation]
    except (KeyError, TypeError):
        raise InvalidGenerationSchemaError(
            f"invalid type {_name(annotation)}: use str, int, float, bool, Decimal, dates, times, UUID, URL, Literal, Enum,"
            " list[...], tuple[..., ...], dict[str, ...], optionals, unions, dataclasses, pydantic models, TypedDicts or"
            " classes with @generable"
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
        raise InvalidGenerationSchemaError(f"the Enum {cls.__name__} has no members; add at least one")
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
        raise InvalidGenerationSchemaError(f"a union has two classes named {max(names, key=names.count)}; rename one")
    if sum("array" in member.kinds for member in members) > 1:
        raise InvalidGenerationSchemaError("a union of several lists is ambiguous; use a list of a union")
    if names and any("object" in member.kinds for member in members if not isinstance(member, Definition | Tagged)):
        raise InvalidGenerationSchemaError("a union of classes and dict is ambiguous; put the dict into a class")
    return OneOf(members=tuple(_tagged(member) for member in members))


def _tagged(member: ValueType) -> ValueType:
    return Tagged(structure=member) if isinstance(member, Definition) else member


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
