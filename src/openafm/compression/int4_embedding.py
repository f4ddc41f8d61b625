"""The 4-bit embedding: groups of 32 along the width, each with an fp16 scale and minimum. Imports no tensor library.

Stored as `<name>` (U8 [V, D/2], two codes per byte, low four bits first), `<name>.scale` and `<name>.minimum` (F16
[V, D/32]); value = minimum + code * scale, in fp32 from the fp16 numbers.

Shapes: V vocabulary, D model dim, G = D / 32 groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.compression.errors import CompressionError
from openafm.compression.post_training.groups import (
    ClippedRange,
    Codes,
    Floats,
    GroupQuantized,
    Halves,
    RangeConfig,
    quantize_groups,
)

BITS, GROUP = 4, 32
Arrays: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Int4Embedding:
    """Codes 0 to 15, one per byte, with the scale and minimum of every group."""

    codes_VD: Codes
    scale_VG: Halves
    minimum_VG: Halves

    def dequantize(self) -> Floats:
        """Return the fp32 values [V, D]."""
        groups = GroupQuantized(
            codes_RC=self.codes_VD, scale_RG=self.scale_VG, minimum_RG=self.minimum_VG, bits=BITS, group=GROUP
        )
        return groups.dequantize()

    def tensors(self, name: str) -> Arrays:
        """Return the tensors of the stored form."""
        return {name: pack_nibbles(self.codes_VD), f"{name}.scale": self.scale_VG, f"{name}.minimum": self.minimum_VG}

    @classmethod
    def from_tensors(cls, name: str, tensors: Mapping[str, NDArray[Any]]) -> Int4Embedding:
        """Read the output of `tensors`.

        Raises:
            CompressionError: a tensor is missing, or has the wrong dtype or shape.
        """
        packed, scale, minimum = (_tensor(tensors, key) for key in (name, f"{name}.scale", f"{name}.minimum"))
        if packed.ndim != 2 or packed.dtype != np.uint8:
            raise CompressionError(f"'{name}' is {_kind(packed)}; expected U8 [vocabulary, width / 2]")
        expected = (packed.shape[0], 2 * packed.shape[1] // GROUP)
        for key, tensor in ((f"{name}.scale", scale), (f"{name}.minimum", minimum)):
            if tensor.shape != expected or tensor.dtype != np.float16:
                raise CompressionError(f"'{key}' is {_kind(tensor)}; expected float16 {list(expected)}")
        return cls(codes_VD=unpack_nibbles(packed), scale_VG=scale, minimum_VG=minimum)


def quantize_embedding(weight_VD: Floats, range: RangeConfig | None = None, name: str = "the embedding") -> Int4Embedding:
    """Return an embedding rounded to 4 bits, with `ClippedRange()` by default. Idempotent.

    `MinMaxRange()` gives the values of `fake_quantize_embedding`, bit for bit.

    Raises:
        CompressionError: the weight is not a matrix, is not finite, exceeds fp16, or its width is not a multiple of 32.
    """
    if weight_VD.ndim == 2 and weight_VD.shape[1] % GROUP:
        raise CompressionError(width_message(name, weight_VD.shape[1]))
    groups = quantize_groups(weight_VD, bits=BITS, group=GROUP, range=range or ClippedRange(), name=name)
    return Int4Embedding(codes_VD=groups.codes_RC, scale_VG=groups.scale_RG, minimum_VG=groups.minimum_RG)


def width_message(name: str, width: int) -> str:
    return f"{name} has width {width}; 4-bit embeddings need a multiple of {GROUP}: change the model or keep 16 bits"


def pack_nibbles(codes_VD: Codes) -> Codes:
    """Return codes 0 to 15 of an even width, two per byte: [V, D / 2]."""
    return np.bitwise_or(codes_VD[:, ::2], codes_VD[:, 1::2] << 4, dtype=np.uint8)


def unpack_nibbles(packed: Codes) -> Codes:
    """Return the codes [V, D] of bytes: the inverse of `pack_nibbles`."""
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def _tensor(tensors: Mapping[str, NDArray[Any]], key: str) -> NDArray[Any]:
    if key not in tensors:
        raise CompressionError(f"the tensor '{key}' of the 4-bit embedding is missing; restore the file")
    return tensors[key]


def _kind(tensor: NDArray[Any]) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
