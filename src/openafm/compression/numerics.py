"""How a bundle computes, in words: every engine computes exactly this. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from openafm.core.config import Config
from openafm.models.accounting import KVNumerics

WeightNumerics: TypeAlias = Literal["float32", "bfloat16", "int2_balanced", "int2_unbalanced", "astc_6x6"]
EmbeddingNumerics: TypeAlias = Literal["float32", "bfloat16", "int4_group32"]
ActivationNumerics: TypeAlias = Literal["float32", "bfloat16", "int8_per_token"]


@dataclass(frozen=True, kw_only=True)
class Numerics(Config):
    """Numbers of the layers' matrices, of the embedding, of what is multiplied with them, and of keys and values.

    int2_balanced: levels (code - 1.5) times an fp32 scale of the matrix or of each row; int2_unbalanced: (code - 2).
    astc_6x6: decoded on loading, then as `activations` say. int4_group32: code times an fp16 scale plus an fp16 minimum for
    every 32 numbers of a row. int8_per_token: what enters a matrix is rounded to symmetric 8 bits with one fp32 scale per
    token, and the products with 2-bit codes are summed as integers; everything else stays fp32, at inference rounded to it
    once (compression/exact.py).
    """

    weights: WeightNumerics = "float32"
    embedding: EmbeddingNumerics = "float32"
    activations: ActivationNumerics = "float32"
    kv: KVNumerics = "float32"

    def __post_init__(self) -> None:
        self.require(
            self.kv != "float32" or self.activations != "bfloat16",
            f"kv float32 cannot be finer than activations {self.activations}; use kv bfloat16 or int8_per_token_head",
        )

    @property
    def multiplies_integers(self) -> bool:
        """Whether layers multiply integers, so that what they multiply is rounded to such before each product."""
        return self.weights in ("int2_balanced", "int2_unbalanced") and self.activations == "int8_per_token"

    @property
    def is_compressed(self) -> bool:
        """Whether weights or embedding have fewer than sixteen bits."""
        return self.weights not in ("float32", "bfloat16") or self.embedding == "int4_group32"


FULL_PRECISION = Numerics()
