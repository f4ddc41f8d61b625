"""Quantization-aware training as data (report section 6). Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from openafm.compression.numerics import ActivationNumerics, EmbeddingNumerics, Numerics, WeightNumerics
from openafm.core.config import Config
from openafm.models.accounting import KVNumerics

if TYPE_CHECKING:
    from openafm.compression.qat import QuantizationAwareness
    from openafm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class LevelSetConfig(Config, ABC):
    """The four levels of a 2-bit weight: W~ = s (clamp(round(W/s + zero), lowest, highest) - zero)."""

    @property
    @abstractmethod
    def zero(self) -> float:
        """z of the report's formula: where 0 lies between the integers."""

    @property
    @abstractmethod
    def lowest(self) -> int:
        """qmin of the report's formula; qmax is three more."""

    @property
    @abstractmethod
    def numerics(self) -> WeightNumerics:
        """The name of the level set in a bundle."""

    @property
    def highest(self) -> int:
        return self.lowest + 3

    @property
    def levels(self) -> tuple[float, ...]:
        """The values of codes 0 to 3, in units of the scale."""
        return tuple(q - self.zero for q in range(self.lowest, self.highest + 1))

    @property
    def largest(self) -> float:
        """The largest magnitude of a level; the learnable clip f gives s = f max|W| / largest."""
        return max(map(abs, self.levels))


@dataclass(frozen=True, kw_only=True)
class BalancedLevels(LevelSetConfig):
    """{-1.5, -0.5, 0.5, 1.5}; trains more smoothly than a set with a zero (report section 6)."""

    @property
    def zero(self) -> float:
        return 0.5

    @property
    def lowest(self) -> int:
        return -1

    @property
    def numerics(self) -> WeightNumerics:
        return "int2_balanced"


@dataclass(frozen=True, kw_only=True)
class UnbalancedLevels(LevelSetConfig):
    """{-2, -1, 0, 1}, the usual two's complement set."""

    @property
    def zero(self) -> float:
        return 0.0

    @property
    def lowest(self) -> int:
        return -2

    @property
    def numerics(self) -> WeightNumerics:
        return "int2_unbalanced"


@dataclass(frozen=True, kw_only=True)
class ClipConfig(Config):
    """Base of the ways to find the initial scale of a matrix; implemented in compression/clip.py."""


@dataclass(frozen=True, kw_only=True)
class NewtonClip(ClipConfig):
    """A scan over scales, then Newton's method on the squared error, with the density of weights at the level boundaries."""

    max_iterations: int = 6

    def __post_init__(self) -> None:
        self.require(self.max_iterations > 0, f"max_iterations must be at least 1, got {self.max_iterations}")


@dataclass(frozen=True, kw_only=True)
class LloydClip(ClipConfig):
    """Lloyd's algorithm: alternately assign weights to levels and fit the scale."""

    max_iterations: int = 50

    def __post_init__(self) -> None:
        self.require(self.max_iterations > 0, f"max_iterations must be at least 1, got {self.max_iterations}")


@dataclass(frozen=True, kw_only=True)
class OctavClip(ClipConfig):
    """OCTAV (arXiv 2206.06501): Newton's method with rounding modeled as uniform noise."""

    max_iterations: int = 10

    def __post_init__(self) -> None:
        self.require(self.max_iterations > 0, f"max_iterations must be at least 1, got {self.max_iterations}")


@dataclass(frozen=True, kw_only=True)
class AbsmaxClip(ClipConfig):
    """No clipping: the outermost level is the largest weight, f = 1."""


Granularity: TypeAlias = Literal["tensor", "row"]


@dataclass(frozen=True, kw_only=True)
class QATConfig(Config):
    """Numerics that quantization-aware training simulates, and what it learns.

    A matrix has one learnable clip, or one for each output row (`granularity`). Gradients of clips are divided by the square
    root of the number of weights that share one. Activations are rounded after the fraction `activations_from` of the run,
    when weights have stabilized and enough steps remain to train with the deployed numerics.
    """

    levels: LevelSetConfig = BalancedLevels()
    clip: ClipConfig = NewtonClip()
    granularity: Granularity = "tensor"
    embedding: EmbeddingNumerics = "int4_group32"
    activations: ActivationNumerics = "int8_per_token"
    activations_from: float = 0.5
    kv: KVNumerics = "int8_per_token_head"

    def __post_init__(self) -> None:
        self.require(0 <= self.activations_from <= 1, f"activations_from must lie in [0, 1], got {self.activations_from}")
        self.require(self.activations != "bfloat16", "activations must be float32 or int8_per_token with 2-bit weights")
        self.require(self.embedding != "bfloat16", "the embedding must be float32 or int4_group32 with 2-bit weights")

    @property
    def numerics(self) -> Numerics:
        """The numerics of the resulting bundle."""
        return Numerics(weights=self.levels.numerics, embedding=self.embedding, activations=self.activations, kv=self.kv)

    def install(self, decoder: Decoder) -> QuantizationAwareness:
        """Install the simulation on a decoder, in place (compression/qat.py)."""
        from openafm.compression.qat import install

        return install(decoder, self)
