"""Configs of the ASTC encoder. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openafm.core.config import Config

NUM_SPLITS = 521  # distinct ways to split a 6x6 block in two, among ASTC's 1,024 patterns


@dataclass(frozen=True, kw_only=True)
class HadamardConfig(Config):
    """Rotate rows and columns by random signs and Hadamard matrices before encoding, and back after decoding.

    Outliers are spread over their row and column, so that the entries are nearly Gaussian. A dimension is rotated in blocks
    of the largest power of two that divides it (832 in blocks of 64). Only `seed` is stored. A matrix that rotation would
    spread over a much wider range, such as a constant one, is not rotated.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        self.require(0 <= self.seed < 2**63, f"seed must be at least 0 and below 2^63, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class AstcConfig(Config):
    """The more accurate recipe: linear (LDR) endpoints and no stored minimum, 3.56 bits per weight.

    One fp32 scale and offset map each matrix to the range 0..1 of a texture. With two `partitions` a block may split its
    weights into two groups with separate end points, by one of ASTC's 1,024 patterns; `num_candidates` of them are evaluated
    in full. With calibration data, `damping` times the mean is added to the diagonal of the moments, and `refinements`
    passes follow the first.
    """

    partitions: Literal[1, 2] = 2
    num_candidates: int = 4
    rotation: HadamardConfig | None = HadamardConfig()
    damping: float = 0.01
    refinements: int = 2

    def __post_init__(self) -> None:
        self.require(
            0 < self.num_candidates <= NUM_SPLITS, f"num_candidates must be 1 to {NUM_SPLITS}, got {self.num_candidates}"
        )
        self.require(self.damping > 0, f"damping must be above 0, got {self.damping}")
        self.require(self.refinements >= 0, f"refinements must be at least 0, got {self.refinements}")


@dataclass(frozen=True, kw_only=True)
class LiteralAstcConfig(Config):
    """The report's recipe: the minimum of each block is subtracted and stored as fp16, the rest encoded with HDR endpoints.

    Four bits per weight, including the minima. Levels between HDR endpoints are nearly logarithmic and dense near the
    minimum, so the error is a quarter larger than that of `AstcConfig` at more bits (twice as large with astcenc, which
    minimizes the error in the logarithmic code).
    """
