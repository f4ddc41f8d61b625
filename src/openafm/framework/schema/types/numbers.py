"""Value types of numbers: `int`, `float` and `Decimal`, with bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from openafm.framework.errors import UnsupportedGuideError
from openafm.framework.schema.guides import GenerationGuide, GuideType
from openafm.framework.schema.types.base import Definition, ValueType, mismatch
from openafm.runtime.decoding.schema_rewrite import LARGEST_NUMBER
from openafm.tokenizer.conversation import JsonSchema


@dataclass(frozen=True, kw_only=True)
class Number(ValueType):
    """`int` (`is_integer`) or `float`, with optional bounds. Bounds of integers are inclusive."""

    is_integer: bool
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"integer"} if self.is_integer else {"integer", "number"})

    def __str__(self) -> str:
        ends = (
            (">=", self.minimum),
            (">", self.exclusive_minimum),
            ("<=", self.maximum),
            ("<", self.exclusive_maximum),
        )
        return " ".join([self._name, *(f"{sign} {end}" for sign, end in ends if end is not None)])

    def json_schema(self, refer: Callable[[Definition], JsonSchema]) -> JsonSchema:
        bounds = {
            "minimum": self.minimum,
            "maximum": self.maximum,
            "exclusiveMinimum": self.exclusive_minimum,
            "exclusiveMaximum": self.exclusive_maximum,
        }
        return {"type": "integer" if self.is_integer else "number"} | {k: v for k, v in bounds.items() if v is not None}

    def decode(self, value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mismatch(self, value, path)
        try:
            number = int(value) if self.is_integer else float(value)
        except (OverflowError, ValueError):  # out of the range of floats, or infinite
            raise mismatch(self, value, path) from None
        if not math.isfinite(number) or (self.is_integer and number != value) or not self._allows(number):
            raise mismatch(self, value, path)
        return number

    def with_guide(self, guide: GenerationGuide) -> ValueType:
        match guide.guide_type:
            case GuideType.minimum:
                return self._within(low=guide.value)
            case GuideType.maximum:
                return self._within(high=guide.value)
            case GuideType.range:
                return self._within(low=guide.value[0], high=guide.value[1])
            case GuideType.exclusiveMinimum if self.is_integer:
                return self._within(low=math.floor(guide.value) + 1)
            case GuideType.exclusiveMaximum if self.is_integer:
                return self._within(high=math.ceil(guide.value) - 1)
            case GuideType.exclusiveMinimum:
                return self._within(above=guide.value)
            case GuideType.exclusiveMaximum:
                return self._within(below=guide.value)
        return super().with_guide(guide)

    @property
    def _name(self) -> str:
        return "int" if self.is_integer else "float"

    def _allows(self, number: float) -> bool:
        return (
            (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.exclusive_minimum is None or number > self.exclusive_minimum)
            and (self.exclusive_maximum is None or number < self.exclusive_maximum)
        )

    def _within(
        self,
        *,
        low: float | None = None,
        high: float | None = None,
        above: float | None = None,
        below: float | None = None,
    ) -> Number:
        if self.is_integer:
            low = None if low is None else math.ceil(low)
            high = None if high is None else math.floor(high)
        narrowed = dataclasses.replace(
            self,
            minimum=_bound(max, self.minimum, low),
            maximum=_bound(min, self.maximum, high),
            exclusive_minimum=_bound(max, self.exclusive_minimum, above),
            exclusive_maximum=_bound(min, self.exclusive_maximum, below),
        )
        if any(bound is not None and abs(bound) > LARGEST_NUMBER for bound in (low, high, above, below)):
            raise UnsupportedGuideError(f"bounds beyond ±{LARGEST_NUMBER:.0e} cannot be enforced while decoding")
        narrowed._require_nonempty()
        return narrowed

    def _require_nonempty(self) -> None:
        low = _bound(max, self.minimum, self.exclusive_minimum)
        high = _bound(min, self.maximum, self.exclusive_maximum)
        if low is None or high is None or low < high or (low == high and self._allows(low)):
            return
        least = "at least" if low == self.minimum else "above"
        most = "at most" if high == self.maximum else "below"
        raise UnsupportedGuideError(f"the guides leave no {self._name}: {least} {low} and {most} {high}")


@dataclass(frozen=True, kw_only=True)
class DecimalNumber(Number):
    """`Decimal`, a JSON number of up to 15 significant digits."""

    is_integer: bool = False

    def decode(self, value: Any, path: str) -> Decimal:
        super().decode(value, path)
        return Decimal(repr(value))

    def encode(self, value: Any) -> float:
        if type(value) is not Decimal or not value.is_finite():
            raise mismatch(self, value, "$")
        number = int(value) if value == value.to_integral_value() else float(value)
        if self.decode(number, "$") != value:  # more digits than a JSON number holds
            raise mismatch(self, value, "$")
        return number

    @property
    def _name(self) -> str:
        return "Decimal"


def _bound(strictest: Callable[[list[float]], float], *bounds: float | None) -> float | None:
    given = [bound for bound in bounds if bound is not None]
    return strictest(given) if given else None
