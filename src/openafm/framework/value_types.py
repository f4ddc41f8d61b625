"""Value types: what one annotation means as JSON Schema, as JSON and as a Python value. Here the base and the scalars."""

from __future__ import annotations

import dataclasses
import datetime
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from openafm.framework.errors import DecodingFailureError, UnsupportedGuideError
from openafm.framework.generation_id import GenerationID
from openafm.framework.guides import GenerationGuide, GuideType
from openafm.framework.patterns import common_pattern, matches
from openafm.runtime.schema_rewrite import LARGEST_NUMBER
from openafm.tokenizer.conversation import JsonSchema

if TYPE_CHECKING:
    from openafm.framework.structure import Structure


class ValueType(ABC):
    """One kind of value. Instances are immutable; a guide gives a narrower one."""

    kinds: ClassVar[frozenset[str]]  # JSON types that a value may have

    @abstractmethod
    def __str__(self) -> str:
        """The type as a Python programmer writes it, for messages."""

    @abstractmethod
    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        """The JSON Schema of a value; `refer` gives the schema that stands for a structure."""

    @abstractmethod
    def decode(self, value: Any, path: str) -> Any:
        """The Python value of a complete JSON value found at `path`.

        Raises:
            DecodingFailureError: the JSON is not of this type.
        """

    def decode_partial(self, value: Any, num_open: int, identity: GenerationID, path: str) -> Any:
        """The Python value of JSON that is still being written, None where nothing can be shown yet.

        The outermost `num_open` values on the way to the end of the text are open: more of them may follow.
        """
        return None if num_open else self.decode(value, path)

    def encode(self, value: Any) -> Any:
        """The JSON of a Python value.

        Raises:
            DecodingFailureError: the value is not of this type.
        """
        return self.decode(value, "$")

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        """This type narrowed by a guide.

        Raises:
            UnsupportedGuideError: the guide is for another type, or leaves no value.
        """
        raise UnsupportedGuideError(f"the guide '{guide.guide_type.name}' does not fit values of type {self}")

    def structures(self) -> Iterable[Structure]:
        """The structures that a value is made of directly."""
        return ()

    def is_finite(self, finite: Set[Structure]) -> bool:
        """Whether some value can be written to its end, given the structures known to end."""
        return True


@dataclass(frozen=True, kw_only=True)
class Text(ValueType):
    """`str`."""

    kinds = frozenset({"string"})
    regex: str | None = None

    def __str__(self) -> str:
        return "str" if self.regex is None else f"str like {self.regex!r}"

    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        return {"type": "string"} | ({} if self.regex is None else {"pattern": common_pattern(self.regex)})

    def decode(self, value: Any, path: str) -> str:
        if isinstance(value, str) and (self.regex is None or matches(self.regex, value)):
            return value
        raise mismatch(self, value, path)

    def decode_partial(self, value: Any, num_open: int, identity: GenerationID, path: str) -> str:
        if num_open and isinstance(value, str):
            return value
        return self.decode(value, path)

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.regex if self.regex is None:
                common_pattern(guide.value)
                return Text(regex=guide.value)
            case GuideType.anyOf | GuideType.constant:
                texts = [guide.value] if guide.guide_type is GuideType.constant else guide.value
                fitting = [text for text in texts if self.regex is None or matches(self.regex, text)]
                return Choices(choices=tuple((text, text) for text in dict.fromkeys(fitting)), label="str").checked(guide)
        return super().with_guide(guide)


@dataclass(frozen=True, kw_only=True)
class Choices(ValueType):
    """`Literal`, `Enum`, or text under `anyOf` or `constant`: pairs of JSON value and Python value."""

    choices: tuple[tuple[Any, Any], ...]
    label: str

    def __str__(self) -> str:
        return self.label

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(_json_type(value) for value, _ in self.choices)

    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        types = sorted(self.kinds)
        return {"type": types[0] if len(types) == 1 else types, "enum": [value for value, _ in self.choices]}

    def decode(self, value: Any, path: str) -> Any:
        for choice, member in self.choices:
            if type(choice) is type(value) and choice == value:
                return member
        raise mismatch(self, value, path)

    def encode(self, value: Any) -> Any:
        for choice, member in self.choices:
            if type(member) is type(value) and member == value:
                return choice
        raise mismatch(self, value, "$")

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.anyOf | GuideType.constant:
                wanted = [guide.value] if guide.guide_type is GuideType.constant else guide.value
                kept = tuple(choice for choice in self.choices if choice[0] in wanted)
                return dataclasses.replace(self, choices=kept).checked(guide)
            case GuideType.regex if self.kinds == {"string"}:
                common_pattern(guide.value)
                kept = tuple(choice for choice in self.choices if matches(guide.value, choice[0]))
                return dataclasses.replace(self, choices=kept).checked(guide)
        return super().with_guide(guide)

    def checked(self, guide: GenerationGuide) -> Choices:
        """This type, or an error when `guide` left no choice."""
        if not self.choices:
            raise UnsupportedGuideError(f"the guide '{guide.guide_type.name}' leaves no value that the other guides allow")
        for value, _ in self.choices:
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                raise UnsupportedGuideError(f"{value!r} holds half of a surrogate pair and cannot be written")
        return self


@dataclass(frozen=True, kw_only=True)
class Number(ValueType):
    """`int` (`is_integer`) or `float`, within bounds."""

    is_integer: bool
    minimum: float | None = None
    maximum: float | None = None

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"integer"} if self.is_integer else {"integer", "number"})

    def __str__(self) -> str:
        bounds = [f"{sign} {end}" for sign, end in ((">=", self.minimum), ("<=", self.maximum)) if end is not None]
        return " ".join(["int" if self.is_integer else "float", *bounds])

    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        bounds = {"minimum": self.minimum, "maximum": self.maximum}
        return {"type": "integer" if self.is_integer else "number"} | {k: v for k, v in bounds.items() if v is not None}

    def decode(self, value: Any, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mismatch(self, value, path)
        try:
            number = int(value) if self.is_integer else float(value)
        except (OverflowError, ValueError):  # an integer beyond floats, or an infinity
            raise mismatch(self, value, path) from None
        if not math.isfinite(number) or (self.is_integer and number != value) or not self._allows(number):
            raise mismatch(self, value, path)
        return number

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.minimum:
                return self._within(guide.value, None)
            case GuideType.maximum:
                return self._within(None, guide.value)
            case GuideType.range:
                return self._within(*guide.value)
        return super().with_guide(guide)

    def _allows(self, number: float) -> bool:
        return (self.minimum is None or number >= self.minimum) and (self.maximum is None or number <= self.maximum)

    def _within(self, low: float | None, high: float | None) -> Number:
        if self.is_integer:
            low = None if low is None else math.ceil(low)
            high = None if high is None else math.floor(high)
        lows = [bound for bound in (self.minimum, low) if bound is not None]
        highs = [bound for bound in (self.maximum, high) if bound is not None]
        narrowed = Number(is_integer=self.is_integer, minimum=max(lows, default=None), maximum=min(highs, default=None))
        if narrowed.minimum is not None and narrowed.maximum is not None and narrowed.minimum > narrowed.maximum:
            name = "int" if self.is_integer else "float"
            raise UnsupportedGuideError(
                f"the guides leave no {name}: it would be at least {narrowed.minimum} and at most {narrowed.maximum}"
            )
        if any(abs(bound) > LARGEST_NUMBER for bound in lows + highs):
            raise UnsupportedGuideError(f"bounds beyond ±{LARGEST_NUMBER:.0e} cannot be enforced while decoding")
        return narrowed


@dataclass(frozen=True, kw_only=True)
class Boolean(ValueType):
    """`bool`."""

    kinds = frozenset({"boolean"})

    def __str__(self) -> str:
        return "bool"

    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        return {"type": "boolean"}

    def decode(self, value: Any, path: str) -> bool:
        if isinstance(value, bool):
            return value
        raise mismatch(self, value, path)


@dataclass(frozen=True, kw_only=True)
class Date(ValueType):
    """`datetime.date`, written YYYY-MM-DD."""

    kinds = frozenset({"string"})

    def __str__(self) -> str:
        return "date"

    def json_schema(self, refer: Callable[[Structure], JsonSchema]) -> JsonSchema:
        return {"type": "string", "format": "date"}

    def decode(self, value: Any, path: str) -> datetime.date:
        try:
            date = datetime.date.fromisoformat(value)
        except (TypeError, ValueError):
            raise mismatch(self, value, path) from None
        if date.isoformat() != value:
            raise mismatch(self, value, path)
        return date

    def encode(self, value: Any) -> str:
        if type(value) is not datetime.date:
            raise mismatch(self, value, "$")
        return value.isoformat()


def mismatch(expected: ValueType, value: Any, path: str) -> DecodingFailureError:
    """The error for JSON that is not of the expected type."""
    return DecodingFailureError(f"{path}: expected {expected}, got {value!r}")


def _json_type(value: Any) -> str:
    return {str: "string", bool: "boolean", int: "integer", type(None): "null"}[type(value)]
