"""What an encoder is told. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openafm.core.config import Config

NUM_SPLITS = 521  # of a 6x6 block in two, among ASTC's 1,024 patterns; the others repeat them or do not split it


@dataclass(frozen=True, kw_only=True)
class HadamardConfig(Config):
    """Rotate rows and columns by random signs and Hadamard matrices before encoding, and back after decoding.

    Outliers are spread over their whole row and column, and every matrix looks Gaussian. A dimension is rotated in blocks of
    the largest power of two that divides it (832 in blocks of 64). Only `seed` is stored.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        self.require(0 <= self.seed < 2**63, f"seed must be a whole number below 2^63, got {self.seed}")


@dataclass(frozen=True, kw_only=True)
class AstcConfig(Config):
    """The better recipe: linear (LDR) endpoints, which HDR decoders read as well, and no stored minimum: 3.56 bits a weight.

    One fp32 scale and offset map each matrix to the 0..1 of a texture. With two `partitions` a block may split its weights
    in two groups with ends of their own, by the best of ASTC's 1,024 patterns; `num_candidates` of them are tried in full.
    With calibration data `damping`, times its mean, is added to the diagonal of their moments, and `refinements` passes
    follow the first.
    """

    partitions: Literal[1, 2] = 2
    num_candidates: int = 4
    rotation: HadamardConfig | None = HadamardConfig()
    damping: float = 0.01
    refinements: int = 2

    def __post_init__(self) -> None:
        self.require(
            0 < self.num_candidates <= NUM_SPLITS, f"num_candidates must lie in 1..{NUM_SPLITS}, got {self.num_candidates}"
        )
        self.require(self.damping > 0, f"damping must be above 0, got {self.damping}")
        self.require(self.refinements >= 0, f"refinements must be at least 0, got {self.refinements}")


@dataclass(frozen=True, kw_only=True)
class LiteralAstcConfig(Config):
    """The report's recipe: the minimum of each block is subtracted and stored as fp16, the rest coded with HDR endpoints.

    Four bits a weight, the minima counted. Between HDR endpoints the levels are spread nearly logarithmically and crowd at
    the minimum of the block: at more bits the error is a quarter above that of `AstcConfig` (twice it with astcenc, which
    makes the error small in the logarithmic code).
    """
