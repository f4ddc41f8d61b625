"""The numerics of a bundle, which every engine implements exactly. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from openafm.core.config import Config
from openafm.models.accounting import KVNumerics

GroupedNumerics: TypeAlias = Literal[
    "int4_group32",
    "int4_group64",
    "int4_group128",
    "int4_symmetric_group32",
    "int4_symmetric_group64",
    "int4_symmetric_group128",
    "int8_group32",
    "int8_group64",
    "int8_group128",
    "int8_per_row",
]
WeightNumerics: TypeAlias = Literal["float32", "bfloat16", "int2_balanced", "int2_unbalanced", "astc_6x6"] | GroupedNumerics
EmbeddingNumerics: TypeAlias = Literal["float32", "bfloat16"] | GroupedNumerics
ActivationNumerics: TypeAlias = Literal["float32", "bfloat16", "int8_per_token"]
VisionNumerics: TypeAlias = Literal["float32", "int8_per_row", "int8_per_row_and_token"]
_INTEGERS = ("int2_", "int4_", "int8_")


@dataclass(frozen=True, kw_only=True)
class MatrixNumerics(Config):
    """Format of the matrices of the layers whose name starts with `prefix`, such as `layers.0.`."""

    prefix: str
    weights: WeightNumerics


@dataclass(frozen=True, kw_only=True)
class Numerics(Config):
    """Formats of the layers' matrices, the embedding, the activations, and keys and values.

    int2_balanced: (code - 1.5) times an fp32 scale of the matrix or of each row; int2_unbalanced: (code - 2) times it.
    astc_6x6: decoded when loaded, computed in the dtype of `activations`. int4_groupN: code times an fp16 scale plus an fp16
    minimum for every N inputs of a row; int4_symmetric_groupN: (code - 8) times an fp16 scale; int8_groupN: a signed code
    times an fp16 scale; int8_per_row: a signed code times an fp32 scale of the row (compression/grouped.py).
    `exceptions` are matrices of the layers in another format; the first one that fits counts. A head with separate weights
    has the format of the embedding.

    int8_per_token: inputs of matrices with integer codes are rounded to symmetric 8 bits with one fp32 scale per token, and
    products with codes are summed as integers; everything else is fp32 (compression/exact.py). Matrices in bfloat16 then
    multiply unrounded fp32 inputs. `vision` is the format of the matrices of a vision encoder and its adapter; they are
    computed in the dtype of `activations`, or in fp32. int8_per_row: code times an fp32 scale of the row. With
    int8_per_row_and_token the inputs of these matrices are also rounded to 8 bits with one scale per token, except pixels
    and inputs that do not divide into blocks of 32 (compression/int8_rows.py).
    """

    weights: WeightNumerics = "float32"
    embedding: EmbeddingNumerics = "float32"
    activations: ActivationNumerics = "float32"
    kv: KVNumerics = "float32"
    vision: VisionNumerics = "float32"
    exceptions: tuple[MatrixNumerics, ...] = ()

    def __post_init__(self) -> None:
        self.require(
            self.kv != "float32" or self.activations != "bfloat16",
            f"kv float32 is finer than activations {self.activations}; use kv bfloat16 or int8_per_token_head",
        )

    def weights_of(self, name: str) -> WeightNumerics:
        """Return the format of a matrix of the layers by its name without `.weight`."""
        return next((each.weights for each in self.exceptions if name.startswith(each.prefix)), self.weights)

    @property
    def multiplies_integers(self) -> bool:
        """Whether matrices multiply integers: codes and rounded activations."""
        return self.weights.startswith(_INTEGERS) and self.activations == "int8_per_token"

    @property
    def rounds_vision(self) -> bool:
        """Whether the matrices of the vision encoder and its adapter multiply rounded inputs."""
        return self.vision == "int8_per_row_and_token"

    @property
    def is_compressed(self) -> bool:
        """Whether weights or embedding have fewer than 16 bits."""
        return not {self.weights, self.embedding} <= {"float32", "bfloat16"}


FULL_PRECISION = Numerics()
