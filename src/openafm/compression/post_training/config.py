"""Post-training compression methods as data. Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openafm.compression.post_training.groups import (
    ClippedRange,
    Floats,
    GroupQuantized,
    MinMaxRange,
    RangeConfig,
    quantize_groups,
)
from openafm.compression.post_training.half_quadratic import HalfQuadraticRange
from openafm.core.config import Config

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class GroupConfig(Config, ABC):
    """Base of rounding in groups of `group` numbers along the input axis, to `bits` each."""

    bits: int = 4
    group: int = 64

    def __post_init__(self) -> None:
        self.require(2 <= self.bits <= 8, f"bits must be 2 to 8, got {self.bits}")
        self.require(self.group > 1, f"group must be at least 2, got {self.group}")

    @property
    @abstractmethod
    def range(self) -> RangeConfig:
        """The way to choose the range of each group."""

    def quantize(self, weight_RC: Floats, name: str = "the matrix") -> GroupQuantized:
        """Return the rounded matrix; errors as `quantize_groups`."""
        return quantize_groups(weight_RC, bits=self.bits, group=self.group, range=self.range, name=name)


@dataclass(frozen=True, kw_only=True)
class RoundToNearestConfig(GroupConfig):
    """Round to nearest, with levels from the minimum to the maximum of each group."""

    @property
    def range(self) -> RangeConfig:
        return MinMaxRange()


@dataclass(frozen=True, kw_only=True)
class ClippedConfig(GroupConfig):
    """Round to nearest, with the range of each group shrunk where that reduces its squared error."""

    @property
    def range(self) -> RangeConfig:
        return ClippedRange()


@dataclass(frozen=True, kw_only=True)
class HalfQuadraticConfig(GroupConfig):
    """Round by half-quadratic quantization (HQQ), without calibration data."""

    @property
    def range(self) -> RangeConfig:
        return HalfQuadraticRange()


_CLIPPED = ClippedRange()


@dataclass(frozen=True, kw_only=True)
class GPTQConfig(Config):
    """GPTQ (arXiv 2210.17323): columns are rounded one by one, and later columns compensate the error of each.

    `damping` is added to the diagonal of the second moment, relative to its mean. `order` of columns is the given one or by
    decreasing activation of their inputs; with the latter, groups keep the levels of the original weights.
    """

    bits: int = 4
    group: int = 64
    range: RangeConfig = _CLIPPED
    damping: float = 0.01
    order: Literal["given", "activation"] = "given"

    def __post_init__(self) -> None:
        self.require(2 <= self.bits <= 8, f"bits must be 2 to 8, got {self.bits}")
        self.require(self.group > 1, f"group must be at least 2, got {self.group}")
        self.require(self.damping >= 0, f"damping must not be negative, got {self.damping}")

    def quantize(self, weight_RC: Tensor, moment_CC: Tensor, name: str = "the matrix") -> GroupQuantized:
        """Return the rounded matrix; errors as `gptq`."""
        from openafm.compression.post_training.gptq import gptq

        return gptq(weight_RC, moment_CC, self, name)
