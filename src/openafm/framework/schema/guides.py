"""Guides: constraints on the value of a field, enforced while decoding (report 7)."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ParamSpec

_METADATA_KEY = "openafm.guide"


class GuideType(Enum):
    """Kinds of guides. Values are JSON Schema keywords where one corresponds.

    Ten are Apple's; exclusive bounds and lengths of strings are additions.
    """

    anyOf = "enum"
    constant = "constant"
    count = "count"
    element = "element"
    exclusiveMaximum = "exclusiveMaximum"
    exclusiveMinimum = "exclusiveMinimum"
    maxItems = "maxItems"
    maxLength = "maxLength"
    maximum = "maximum"
    minItems = "minItems"
    minLength = "minLength"
    minimum = "minimum"
    range = "range"
    regex = "regex"


@dataclass(frozen=True)
class GenerationGuide:
    """Hold one guide, made by a class method. A value of the wrong kind raises `ValueError`."""

    guide_type: GuideType
    value: Any = None

    @classmethod
    def anyOf(cls, values: Sequence[str]) -> GenerationGuide:  # noqa: N802
        """Allow one of these strings."""
        _require(
            isinstance(values, list | tuple) and all(isinstance(value, str) for value in values),
            "anyOf",
            "a list of strings",
        )
        return cls(GuideType.anyOf, list(values))

    @classmethod
    def constant(cls, value: str) -> GenerationGuide:
        """Allow exactly this string."""
        _require(isinstance(value, str), "constant", "a string")
        return cls(GuideType.constant, value)

    @classmethod
    def count(cls, count: int) -> GenerationGuide:
        """Require a list of exactly `count` items."""
        _require(_is_integer(count) and count > 0, "count", "a positive integer")
        return cls(GuideType.count, count)

    @classmethod
    def element(cls, guide: GenerationGuide) -> GenerationGuide:
        """Apply a guide to each item of a list or each value of a dictionary."""
        _require(isinstance(guide, GenerationGuide), "element", "a GenerationGuide instance")
        return cls(GuideType.element, guide)

    @classmethod
    def exclusive_maximum(cls, value: float) -> GenerationGuide:
        """Require a number below `value`."""
        _require(_is_number(value), "exclusive_maximum", "a number")
        return cls(GuideType.exclusiveMaximum, value)

    @classmethod
    def exclusive_minimum(cls, value: float) -> GenerationGuide:
        """Require a number above `value`."""
        _require(_is_number(value), "exclusive_minimum", "a number")
        return cls(GuideType.exclusiveMinimum, value)

    @classmethod
    def max_items(cls, value: int) -> GenerationGuide:
        """Require a list of at most `value` items."""
        _require(_is_integer(value) and value >= 0, "max_items", "a non-negative integer")
        return cls(GuideType.maxItems, value)

    @classmethod
    def max_length(cls, value: int) -> GenerationGuide:
        """Require a string of at most `value` characters."""
        _require(_is_integer(value) and value >= 0, "max_length", "a non-negative integer")
        return cls(GuideType.maxLength, value)

    @classmethod
    def maximum(cls, value: float) -> GenerationGuide:
        """Require a number of at most `value`."""
        _require(_is_number(value), "maximum", "a number")
        return cls(GuideType.maximum, value)

    @classmethod
    def min_items(cls, value: int) -> GenerationGuide:
        """Require a list of at least `value` items."""
        _require(_is_integer(value) and value >= 0, "min_items", "a non-negative integer")
        return cls(GuideType.minItems, value)

    @classmethod
    def min_length(cls, value: int) -> GenerationGuide:
        """Require a string of at least `value` characters."""
        _require(_is_integer(value) and value >= 0, "min_length", "a non-negative integer")
        return cls(GuideType.minLength, value)

    @classmethod
    def minimum(cls, value: float) -> GenerationGuide:
        """Require a number of at least `value`."""
        _require(_is_number(value), "minimum", "a number")
        return cls(GuideType.minimum, value)

    @classmethod
    def range(cls, range_tuple: tuple[float, float]) -> GenerationGuide:
        """Require a number between two inclusive bounds."""
        is_pair = isinstance(range_tuple, tuple) and len(range_tuple) == 2
        _require(is_pair and all(map(_is_number, range_tuple)), "range", "a tuple of (min, max)")
        return cls(GuideType.range, range_tuple)

    @classmethod
    def regex(cls, pattern: str) -> GenerationGuide:
        """Require a string that matches `pattern` completely; `\\d`, `\\w` and `\\s` are ASCII (see `patterns.py`)."""
        _require(isinstance(pattern, str), "regex", "a string")
        return cls(GuideType.regex, pattern)

    def __hash__(self) -> int:  # lists are unhashable; unions of `Annotated` types need a hash
        return hash((self.guide_type, repr(self.value)))


ParametersT = ParamSpec("ParametersT")
_HINTS = {
    "pattern": "regex",
    "ge": "minimum",
    "min": "minimum",
    "gt": "exclusive_minimum",
    "exclusiveMinimum": "exclusive_minimum",
    "le": "maximum",
    "max": "maximum",
    "lt": "exclusive_maximum",
    "exclusiveMaximum": "exclusive_maximum",
    "enum": "anyOf",
    "any_of": "anyOf",
    "choices": "anyOf",
    "options": "anyOf",
    "const": "constant",
    "length": "count",
    "items": "element",
    "minItems": "min_items",
    "maxItems": "max_items",
    "minLength": "min_length",
    "maxLength": "max_length",
}


def _with_hints(function: Callable[ParametersT, Any]) -> Callable[ParametersT, Any]:
    """Return the function with an error for unknown keywords that names the right one."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def hinting(*arguments: ParametersT.args, **keywords: ParametersT.kwargs) -> Any:
        for name in keywords:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = _HINTS.get(name) or (near[0] if near else None)
                way_out = f"use {hint}=" if hint else f"known: {', '.join(known)}"
                raise TypeError(f"guide() has no keyword '{name}'; {way_out}")
        return function(*arguments, **keywords)

    return hinting


@_with_hints
def guide(
    description: str | None = None,
    *,
    anyOf: Sequence[str] | None = None,
    constant: str | None = None,
    count: int | None = None,
    element: GenerationGuide | None = None,
    max_items: int | None = None,
    maximum: float | None = None,
    min_items: int | None = None,
    minimum: float | None = None,
    range: tuple[float, float] | None = None,
    regex: str | None = None,
    exclusive_maximum: float | None = None,
    exclusive_minimum: float | None = None,
    max_length: int | None = None,
    min_length: int | None = None,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
) -> Any:
    """Return a dataclass field of a generable class, with a description for the model and guides.

    Raises:
        ValueError: the value of a guide has the wrong kind. The schema checks whether guides fit the type of the field.
    """
    makers: list[tuple[Callable[[Any], GenerationGuide], Any]] = [
        (GenerationGuide.anyOf, anyOf),
        (GenerationGuide.constant, constant),
        (GenerationGuide.count, count),
        (GenerationGuide.element, element),
        (GenerationGuide.max_items, max_items),
        (GenerationGuide.maximum, maximum),
        (GenerationGuide.min_items, min_items),
        (GenerationGuide.minimum, minimum),
        (GenerationGuide.range, range),
        (GenerationGuide.regex, regex),
        (GenerationGuide.exclusive_maximum, exclusive_maximum),
        (GenerationGuide.exclusive_minimum, exclusive_minimum),
        (GenerationGuide.max_length, max_length),
        (GenerationGuide.min_length, min_length),
    ]
    guides = tuple(make(value) for make, value in makers if value is not None)
    metadata = {_METADATA_KEY: FieldGuide(description=description, guides=guides)}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class FieldGuide:
    """Hold the arguments of `guide()` in the metadata of a dataclass field."""

    description: str | None = None
    guides: tuple[GenerationGuide, ...] = ()

    @staticmethod
    def of(field: dataclasses.Field[Any]) -> FieldGuide:
        """Return the metadata of a field; empty for fields without `guide()`."""
        found = field.metadata.get(_METADATA_KEY)
        return found if isinstance(found, FieldGuide) else FieldGuide()


def _require(condition: bool, name: str, expected: str) -> None:
    if not condition:
        raise ValueError(f"'{name}' must be {expected}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))
