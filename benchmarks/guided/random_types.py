"""Random types over everything that `@generable` can express, each with its own judge of Python values.

The judges do not use schemas or grammars: they check values with `re`, `isinstance` and comparisons.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import random
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict, Union

import pydantic

import openafm as fm
from openafm.framework.schema.types.formatted import URL

Judge = Callable[[Any], bool]

WORDS = (
    "red",
    "Ünïcode",
    'quo"te',
    "back\\slash",
    "new\nline",
    "a/b",
    "日本語",
    "🌹",
    "",
    " spaced ",
    "true",
    "12",
    "{",
    "\x7f",
)
DESCRIPTIONS = (None, "plain", 'with "quotes", \\ and\nlines', "日本語 🌹")
NARROW = (*'aB7- é"', r"\.", r"\d", r"\w", r"\s", r"\n", r"\\", "[a-f]", r"[\s-]")
WIDE = (r"\D", r"\W", r"\S", r"[^\d]", "[^a]", ".")
FEW = ("?", "{2}", "{1,3}", "{,2}")
MANY = ("*", "+", "{3,}", "*?")
INTEGERS = (0, 1, -1, 7, -40, 999, 10**6, -(10**12), 10**18)
NUMBERS = (0, 1, -1.5, 0.1, 0.30000000000000004, 1e-7, -3e-5, 2.5e5, 1e17)
DEFAULTS = {str: "some", int: 0, float: 0.5, bool: True, datetime.date: datetime.date(2024, 2, 29)}


@dataclass(frozen=True, kw_only=True)
class RandomType:
    """An annotation, the guides for a field that has it, and the judge of its values."""

    annotation: Any
    judge: Judge
    guides: dict[str, Any] = field(default_factory=dict)


class TypeMaker:
    """Make random types. A class may refer to its enclosing classes, so some types are recursive."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._num_classes = 0
        self._unfinished: list[str] = []
        self._judges: dict[str, Judge] = {}  # by class name

    def root(self) -> RandomType:
        """Return a class with probability 0.9, else any type."""
        return self._class(3) if self._random.random() < 0.9 else self._any(2)

    def class_of_arguments(self) -> RandomType:
        """Return a class with a few nested classes."""
        return self._class(2)

    def _any(self, depth: int) -> RandomType:
        scalars = (self._text, self._integer, self._number, self._boolean, self._formatted, self._literal, self._enum)
        nested = (
            self._list,
            self._dict,
            self._anything,
            self._class,
            self._optional,
            self._scalar_union,
            self._class_union,
            self._recursion,
        )
        return self._random.choice((*scalars, *nested, *nested) if depth > 0 else scalars)(depth - 1)

    def _text(self, _: int) -> RandomType:
        match self._random.choice(("plain", "anyOf", "constant", "regex", "regex", "length")):
            case "anyOf":
                choices = self._random.sample(WORDS, self._random.randint(1, 4))
                return RandomType(annotation=str, guides={"anyOf": choices}, judge=lambda value: value in choices)
            case "constant":
                word = self._random.choice(WORDS)
                return RandomType(annotation=str, guides={"constant": word}, judge=lambda value: bool(value == word))
            case "regex":
                regex = self._regex(2)
                return RandomType(
                    annotation=str,
                    guides={"regex": regex},
                    judge=lambda value: _is_text(value) and re.fullmatch(regex, value, re.ASCII) is not None,
                )
            case "length":
                low, high = sorted(self._random.choices(range(9), k=2))
                return RandomType(
                    annotation=str,
                    guides={"min_length": low, "max_length": high},
                    judge=lambda value: _is_text(value) and low <= len(value) <= high,
                )
        return RandomType(annotation=str, judge=_is_text)

    def _regex(self, depth: int, is_last: bool = True) -> str:
        """Return a pattern. Wide character classes repeat without bound only at its end, where nothing has to match."""
        match "atom" if depth == 0 else self._random.choice(("atom", "row", "row", "few", "many", "choice")):
            case "atom":
                return self._random.choice(NARROW + WIDE)
            case "few":
                return f"(?:{self._regex(depth - 1, is_last=False)}){self._random.choice(FEW)}"
            case "many":
                body = self._regex(depth - 1, is_last=False) if is_last else self._random.choice(NARROW)
                return f"(?:{body}){self._random.choice(MANY)}"
            case "choice":
                return f"({'|'.join(self._regex(depth - 1, is_last) for _ in range(self._random.randint(1, 3)))})"
        lasts = [False] * self._random.randint(0, 2) + [is_last]
        return "".join(self._regex(depth - 1, last) for last in lasts)

    def _integer(self, _: int) -> RandomType:
        return self._bounded(int, *self._random.choices(INTEGERS, k=2))

    def _number(self, _: int) -> RandomType:
        cls = self._random.choice((float, float, Decimal))
        return self._bounded(cls, *self._random.choices((*NUMBERS, self._random.uniform(-1, 1)), k=2))

    def _bounded(self, cls: type, one_end: float, other_end: float) -> RandomType:
        low, high = sorted((one_end, other_end))
        if cls is not int and high - low < 1e-9:
            high = low + max(1, abs(low) / 1e3)  # neighboring doubles may have no enforceable number between them
        ends: dict[str, Any] = {}
        if self._random.random() < 0.6:
            ends[self._random.choice(("minimum", "minimum", "exclusive_minimum"))] = low
        if self._random.random() < 0.6:
            ends[self._random.choice(("maximum", "maximum", "exclusive_maximum"))] = high
        if cls is int and high - low < 2:
            ends = {name.removeprefix("exclusive_"): end for name, end in ends.items()}
        guides = {"range": (low, high)} if ends.keys() == {"minimum", "maximum"} and self._random.random() < 0.7 else ends
        return RandomType(annotation=cls, guides=guides, judge=lambda value: type(value) is cls and _within(value, **ends))

    def _boolean(self, _: int) -> RandomType:
        return RandomType(annotation=bool, judge=lambda value: type(value) is bool)

    def _formatted(self, _: int) -> RandomType:
        cls: type = self._random.choice((datetime.date, datetime.datetime, datetime.time, uuid.UUID, URL))
        return RandomType(annotation=cls, judge=lambda value: type(value) is cls)

    def _literal(self, _: int) -> RandomType:
        values = tuple(self._random.sample((*WORDS, 1, 0, -7, True, False), self._random.randint(1, 4)))
        return RandomType(
            annotation=Literal[values], judge=lambda value: (type(value), value) in [(type(v), v) for v in values]
        )

    def _enum(self, _: int) -> RandomType:
        names = self._random.sample(("ONE", "TWO", "Trois", "四"), self._random.randint(1, 4))
        values = self._random.sample(WORDS, len(names)) if self._random.random() < 0.5 else range(len(names))
        made = Enum("Made", dict(zip(names, values, strict=True)))
        return RandomType(annotation=made, judge=lambda value: isinstance(value, made))

    def _list(self, depth: int) -> RandomType:
        item = self._any(depth)
        least, most = sorted(self._random.choices(range(4), k=2))
        sizes: list[dict[str, Any]] = [{}, {"max_items": most}, {"min_items": least, "max_items": most}]
        guides = self._random.choice([*sizes, {"count": most}] if most else sizes)
        low = guides.get("count", guides.get("min_items", 0))
        high = guides.get("count", guides.get("max_items", 10**9))
        if len(item.guides) == 1 and self._random.random() < 0.5:
            guides = guides | {"element": _guides(item.guides)[0]}
            item = replace(item, guides={})
        container = self._random.choice((list, list, tuple))
        inner = annotated(item)
        return RandomType(
            annotation=list[inner] if container is list else tuple[inner, ...],  # type: ignore[valid-type]
            guides=guides,
            judge=lambda value: type(value) is container and low <= len(value) <= high and all(map(item.judge, value)),
        )

    def _dict(self, depth: int) -> RandomType:
        value, most = self._any(depth), self._random.randint(1, 3)
        guides: dict[str, Any] = self._random.choice(({}, {"max_items": most}, {"min_items": 1}))
        low, high = guides.get("min_items", 0), guides.get("max_items", math.inf)
        return RandomType(
            annotation=dict[str, annotated(value)],  # type: ignore[misc]
            guides=guides,
            judge=lambda values: (
                type(values) is dict
                and low <= len(values) <= high
                and all(map(_is_text, values))
                and all(map(value.judge, values.values()))
            ),
        )

    def _anything(self, depth: int) -> RandomType:
        return RandomType(annotation=self._random.choice((Any, list, dict)), judge=_is_json)

    def _optional(self, depth: int) -> RandomType:
        value_type = self._any(depth)
        judge = value_type.judge
        return replace(
            value_type,
            annotation=Optional[value_type.annotation],  # noqa: UP045
            judge=lambda value: value is None or judge(value),
        )

    def _scalar_union(self, _: int) -> RandomType:
        kinds = (self._integer, self._number, self._boolean, self._formatted, self._literal, self._enum, self._text)
        members = [make(0) for make in self._random.sample(kinds, self._random.randint(2, 4))]
        return RandomType(
            annotation=Union[tuple(annotated(member) for member in members)],  # noqa: UP007
            judge=lambda value: any(member.judge(value) for member in members),
        )

    def _class_union(self, depth: int) -> RandomType:
        members = [self._class(depth) for _ in range(self._random.randint(2, 3))]
        members += [self._text(0)] * (self._random.random() < 0.2)
        return RandomType(
            annotation=Union[tuple(annotated(member) for member in members)],  # noqa: UP007
            judge=lambda value: any(member.judge(value) for member in members),
        )

    def _recursion(self, depth: int) -> RandomType:
        if not self._unfinished:
            return self._class(depth)
        name = self._random.choice(self._unfinished)
        if self._random.random() < 0.5:
            annotation = Optional[name]  # noqa: UP045
            return RandomType(annotation=annotation, judge=lambda value: value is None or self._judges[name](value))
        return RandomType(
            annotation=list[name],  # type: ignore[valid-type]
            guides={"max_items": 2},
            judge=lambda value: type(value) is list and len(value) <= 2 and all(map(self._judges[name], value)),
        )

    def _class(self, depth: int) -> RandomType:
        name = f"Class{self._num_classes}"
        self._num_classes += 1
        self._unfinished.append(name)
        fields = {f"field_{i}": self._any(depth) for i in range(self._random.randint(1, 4))}
        self._unfinished.pop()
        if depth > 0:  # later types may refer to it by name
            make = self._random.choice((self._generable, self._generable, self._dataclass))
        else:
            make = self._random.choice((self._generable, self._dataclass, self._model, self._typed_dict))
        cls = make(name, fields)
        read = dict.get if issubclass(cls, dict) else getattr
        value_class = dict if issubclass(cls, dict) else cls
        self._judges[name] = lambda value: (
            type(value) is value_class
            and all(
                made.judge(read(value, field)) or (value_class is dict and field not in value)
                for field, made in fields.items()
            )
        )
        return RandomType(annotation=cls, judge=self._judges[name])

    def _generable(self, name: str, fields: dict[str, RandomType]) -> type:
        return fm.generable(self._random.choice(DESCRIPTIONS))(type(name, (), self._body(name, fields)))

    def _dataclass(self, name: str, fields: dict[str, RandomType]) -> type:
        return dataclasses.dataclass(kw_only=True)(type(name, (), self._body(name, fields)))

    def _body(self, name: str, fields: dict[str, RandomType]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "__qualname__": f"TypeMaker.<locals>.{name}",  # a local class; references are resolved by name
            "__annotations__": {name: made.annotation for name, made in fields.items()},
        }
        for field_name, made in fields.items():
            has_default = made.annotation in DEFAULTS and not made.guides and self._random.random() < 0.2
            default = {"default": DEFAULTS[made.annotation]} if has_default else {}
            body[field_name] = fm.guide(self._random.choice(DESCRIPTIONS), **made.guides, **default)
        return body

    def _model(self, name: str, fields: dict[str, RandomType]) -> type:
        annotations = {name: (_with_constraints(made), ...) for name, made in fields.items()}
        made: type = pydantic.create_model(name, **annotations)  # type: ignore[call-overload]
        return made

    def _typed_dict(self, name: str, fields: dict[str, RandomType]) -> type:
        chance = {name: self._random.random() < 0.3 for name in fields}
        keys = {name: annotated(made) for name, made in fields.items()}
        return TypedDict(name, {key: NotRequired[of] if chance[key] else of for key, of in keys.items()})  # type: ignore


def _with_constraints(made: RandomType) -> Any:
    """Return the annotation with pydantic constraints in place of guides where one exists."""
    constraints = {
        "minimum": "ge",
        "maximum": "le",
        "exclusive_minimum": "gt",
        "exclusive_maximum": "lt",
        "min_items": "min_length",
        "max_items": "max_length",
        "min_length": "min_length",
        "max_length": "max_length",
    }
    known = {constraints[name]: value for name, value in made.guides.items() if name in constraints}
    others = {name: value for name, value in made.guides.items() if name not in constraints}
    return Annotated[(made.annotation, pydantic.Field(**known), *_guides(others))]


def _guides(guides: dict[str, Any]) -> list[fm.GenerationGuide]:
    return [getattr(fm.GenerationGuide, name)(value) for name, value in guides.items()]


def annotated(made: RandomType) -> Any:
    """Return the annotation with its guides, outside of a class."""
    return Annotated[(made.annotation, *_guides(made.guides))] if made.guides else made.annotation


def _is_text(value: Any) -> bool:
    return type(value) is str and not any("\ud800" <= character <= "\udfff" for character in value)


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(map(_is_text, value)) and all(map(_is_json, value.values()))
    return value is None or type(value) in (bool, int, float) or _is_text(value)


def _within(
    value: Any,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    exclusive_minimum: float = -math.inf,
    exclusive_maximum: float = math.inf,
) -> bool:
    number = value if type(value) is int else float(value)
    return (
        minimum <= number <= maximum
        and (exclusive_minimum < number < exclusive_maximum or math.isinf(number))
        and abs(number) <= 1e18
    )
