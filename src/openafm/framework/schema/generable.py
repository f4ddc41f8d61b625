"""`@generable` makes an annotated class a type for guided generation (report 7)."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, cast, dataclass_transform, overload, runtime_checkable

from openafm.framework.errors import InvalidGenerationSchemaError
from openafm.framework.schema.annotations import STRUCTURE, structure_of
from openafm.framework.schema.content import ConvertibleFromGeneratedContent, ConvertibleToGeneratedContent, GeneratedContent
from openafm.framework.schema.guides import guide
from openafm.framework.schema.records import DataclassRecord
from openafm.framework.schema.schema import GenerationSchema

T = TypeVar("T")


@runtime_checkable
class Generable(ConvertibleFromGeneratedContent, ConvertibleToGeneratedContent, Protocol):
    """Protocol of classes with `@generable`, for annotations and `isinstance`. Not a base class."""

    PartiallyGenerated: ClassVar[Any]

    @classmethod
    def generation_schema(cls) -> GenerationSchema: ...

    def __init_subclass__(cls) -> None:
        raise TypeError("Generable is a protocol, not a base class; decorate the class with @fm.generable instead")


@overload
@dataclass_transform(kw_only_default=True, field_specifiers=(guide, dataclasses.field))
def generable(arg: type[T], /) -> type[T]: ...
@overload
@dataclass_transform(kw_only_default=True, field_specifiers=(guide, dataclasses.field))
def generable(arg: str | None = None, /) -> Callable[[type[T]], type[T]]: ...
def generable(arg: Any = None, /) -> Any:
    """Make a class generable: `@generable`, `@generable()` or `@generable("description")`.

    The class becomes a dataclass, with keyword-only fields if a required field follows an optional one. It gains
    `generation_schema()`, `generated_content` and `PartiallyGenerated`, the class of streaming snapshots. `annotations.py`
    lists the supported annotations; `guide()` narrows them. `generation_schema()` checks types and guides, so annotations
    may name classes that are defined later.

    Raises:
        InvalidGenerationSchemaError: the argument is not a class, has no annotated fields, or cannot be a dataclass.
    """
    local_names = sys._getframe(1).f_locals
    if arg is None or isinstance(arg, str):
        return lambda cls: _make_generable(cls, arg, local_names)
    return _make_generable(arg, None, local_names)


def _make_generable(cls: Any, description: str | None, local_names: Mapping[str, Any]) -> type:
    if not isinstance(cls, type):
        raise InvalidGenerationSchemaError(
            f"@generable decorates a class, not a {type(cls).__name__}; for example\n{_example('Event')}"
        )
    if "__dataclass_fields__" not in vars(cls):
        try:
            dataclasses.dataclass(kw_only=_needs_keywords(cls))(cls)
        except (TypeError, ValueError) as error:
            raise InvalidGenerationSchemaError(
                f"{cls.__name__} cannot be a dataclass: {error}; write the default of a list as\n"
                "    tags: list[str] = fm.guide(default_factory=list)"
            ) from error
    if not dataclasses.fields(cls):
        raise InvalidGenerationSchemaError(
            f"{cls.__name__} has no annotated field; add one, for example\n{_example(cls.__name__)}"
        )
    record = DataclassRecord(cls, description, local_names)
    structure = structure_of(record)
    generable_class = cast(Any, cls)
    setattr(cls, STRUCTURE, structure)
    generable_class.PartiallyGenerated = record.partial_class
    generable_class.generation_schema = classmethod(GenerationSchema)
    generable_class._from_generated_content = classmethod(lambda cls, content: content.value(cls))
    generable_class.generated_content = property(lambda self: GeneratedContent(structure.encode(self)))
    return cls


def _needs_keywords(cls: type) -> bool:
    """Check whether a required field follows one with a default, which positional arguments do not allow."""
    has_default = {field.name: _has_default(field) for field in getattr(cls, "__dataclass_fields__", {}).values()}
    has_default |= {name: _has_default(vars(cls).get(name, dataclasses.MISSING)) for name in inspect.get_annotations(cls)}
    defaults = list(has_default.values())
    return sorted(defaults) != defaults


def _has_default(declared: Any) -> bool:
    if isinstance(declared, dataclasses.Field):
        return declared.default is not dataclasses.MISSING or declared.default_factory is not dataclasses.MISSING
    return declared is not dataclasses.MISSING


def _example(name: str) -> str:
    return f"    @fm.generable\n    class {name}:\n        title: str"
