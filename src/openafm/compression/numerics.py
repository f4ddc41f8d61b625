"""The numerics of a bundle, which every engine implements exactly. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from openafm.core.config import Config
from openafm.models.accounting import KVNumerics

WeightNumerics: TypeAlias = Literal["float32", "bfloat16", "int2_balanced", "int2_unbalanced", "astc_6x6"]
EmbeddingNumerics: TypeAlias = Literal["float32", "bfloat16", "int4_group32"]
ActivationNumerics: TypeAlias = Literal["float32", "bfloat16", "int8_per_token"]
VisionNumerics: TypeAlias = Literal["float32", "int8_per_row"]


@dataclass(frozen=True, kw_only=True)
class Numerics(Config):
    """Formats of the layers' matrices, the embedding, the activations, and keys and values.

    int2_balanced: (code - 1.5) times an fp32 scale of the matrix or of each row; int2_unbalanced: (code - 2) times it.
    astc_6x6: decoded when loaded, computed in the dtype of `activations`. int4_group32: code times an fp16 scale plus an
    fp16 minimum for every 32 numbers of a row. int8_per_token: inputs of matrices are rounded to symmetric 8 bits with one
    fp32 scale per token, and products with 2-bit codes are summed as integers; everything else is fp32
    (compression/exact.py). `vision` is the format of the matrices of a vision encoder and its adapter; they are computed in
    the dtype of `activations`, or in fp32. int8_per_row: code times an fp32 scale of the row (compression/int8_rows.py).
    """

    weights: WeightNumerics = "float32"
    embedding: EmbeddingNumerics = "float32"
    activations: ActivationNumerics = "float32"
    kv: KVNumerics = "float32"
    vision: VisionNumerics = "float32"

    def __post_init__(self) -> None:
        self.require(
            self.kv != "float32" or self.activations != "bfloat16",
            f"kv float32 is finer than activations {self.activations}; use kv bfloat16 or int8_per_token_head",
        )

    @property
    def multiplies_integers(self) -> bool:
        """Whether matrices multiply integers: 2-bit codes and rounded activations."""
        return self.weights in ("int2_balanced", "int2_unbalanced") and self.activations == "int8_per_token"

    @property
    def is_compressed(self) -> bool:
        """Whether weights or embedding have fewer than 16 bits."""
        return self.weights not in ("float32", "bfloat16") or self.embedding == "int4_group32"


FULL_PRECISION = Numerics()
