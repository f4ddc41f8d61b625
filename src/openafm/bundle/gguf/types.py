"""The types of tensors in GGUF files, and their values in float32.

A row is a sequence of blocks. Simple types have blocks of 32 values with one fp16 scale; K types have blocks of 256 values
with fp16 scales of 6 or 8-bit scales. Decoded values are those of the reference implementation, bit by bit.

Shapes: B blocks, G groups, g values of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

_CHUNK_BLOCKS = 1 << 16  # blocks decoded at once: temporary arrays stay below 100 MB


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of 32 values: integer codes times a scale, plus a minimum."""

    codes_Gg: NDArray[np.int8]
    scale_G: Floats
    minimum_G: Floats | None = None

    def values(self) -> Floats:
        scaled_Gg: Floats = self.scale_G[:, None] * self.codes_Gg
        return scaled_Gg if self.minimum_G is None else scaled_Gg + self.minimum_G[:, None]


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """A type: values and bytes of a block, and the function that decodes blocks; None if it is not supported.

    `groups` reads the codes of types with groups of 32 values and codes of up to 8 bits that the native engine has.
    """

    name: str
    block_values: int = 1
    block_bytes: int = 1
    decode: Callable[[Bytes], Floats] | None = None
    groups: Callable[[Bytes], Groups] | None = None

    def dequantize(self, blocks: Bytes) -> Floats:
        """Return the values of consecutive blocks.

        Raises:
            NotImplementedError: the type is not supported; the reader refuses such files.
        """
        if self.decode is None:
            raise NotImplementedError(f"tensors of type {self.name} are not supported")
        blocks_B = blocks.reshape(-1, self.block_bytes)
        values = np.empty((len(blocks_B), self.block_values), np.float32)
        for start in range(0, len(blocks_B), _CHUNK_BLOCKS):
            chunk_B = np.ascontiguousarray(blocks_B[start : start + _CHUNK_BLOCKS])
            values[start : start + len(chunk_B)] = self.decode(chunk_B).reshape(len(chunk_B), -1)
        return values.reshape(-1)


def _f32(blocks_B: Bytes) -> Floats:
    return blocks_B.view(np.float32)


def _half(blocks_B: Bytes) -> Floats:
    return blocks_B.view(np.float16).astype(np.float32)


def _bf16(blocks_B: Bytes) -> Floats:
    return (blocks_B.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _nibbles(bytes_B: Bytes) -> Bytes:
    """Low nibbles of all bytes, then high nibbles."""
    return np.concatenate([bytes_B & 15, bytes_B >> 4], axis=-1)


def _q8_0(blocks_B: Bytes) -> Groups:
    return Groups(codes_Gg=blocks_B[:, 2:].copy().view(np.int8), scale_G=_half(blocks_B[:, :2].copy())[:, 0])


def _q4_0(blocks_B: Bytes) -> Groups:
    codes_Gg = _nibbles(blocks_B[:, 2:]).astype(np.int8) - np.int8(8)
    return Groups(codes_Gg=codes_Gg, scale_G=_half(blocks_B[:, :2].copy())[:, 0])


def _q4_1(blocks_B: Bytes) -> Groups:
    scale_G, minimum_G = _half(blocks_B[:, :4].copy()).T
    return Groups(codes_Gg=_nibbles(blocks_B[:, 4:]).astype(np.int8), scale_G=scale_G, minimum_G=minimum_G)


def _q4_k_codes(blocks_B: Bytes) -> Bytes:
    return _nibbles(blocks_B[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(blocks_B: Bytes) -> Floats:
    return _scaled_with_minimum(blocks_B, _q4_k_codes(blocks_B))


def _q4_k_groups(blocks_B: Bytes) -> Groups:
    scales, minima = _scales_and_minima(blocks_B)
    codes_Gg = _q4_k_codes(blocks_B).reshape(-1, 32).astype(np.int8)
    return Groups(codes_Gg=codes_Gg, scale_G=scales.reshape(-1), minimum_G=-minima.reshape(-1))


def _q5_k(blocks_B: Bytes) -> Floats:
    low = _nibbles(blocks_B[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high: Bytes = (blocks_B[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1).astype(np.uint8)
    codes: Bytes = (low | high << 4).astype(np.uint8)
    return _scaled_with_minimum(blocks_B, codes)


def _scaled_with_minimum(blocks_B: Bytes, codes: Bytes) -> Floats:
    scales, minima = _scales_and_minima(blocks_B)
    values: Floats = scales[..., None] * codes - minima[..., None]
    return values


def _scales_and_minima(blocks_B: Bytes) -> tuple[Floats, Floats]:
    """Scales and negated minima of 8 groups of 32, which are stored in 6 bits each."""
    scale_B, minimum_B = _half(blocks_B[:, :2].copy()), _half(blocks_B[:, 2:4].copy())
    first, second, third = (blocks_B[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 15 | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | (second >> 6) << 4], axis=1)
    return scale_B * scales, minimum_B * minima


def _q6_k(blocks_B: Bytes) -> Floats:
    low = _nibbles(blocks_B[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks_B[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = (low | high << 4).astype(np.int8) - np.int8(32)
    scales = _half(blocks_B[:, 208:].copy()) * blocks_B[:, 192:208].copy().view(np.int8)
    values: Floats = scales[..., None] * codes.reshape(-1, 16, 16)
    return values


def _grouped_type(name: str, block_bytes: int, groups: Callable[[Bytes], Groups]) -> TensorType:
    """A type whose blocks are groups of 32 values."""
    return TensorType(
        name=name,
        block_values=32,
        block_bytes=block_bytes,
        decode=lambda blocks_B: groups(blocks_B).values(),
        groups=groups,
    )


TENSOR_TYPES = {
    0: TensorType(name="F32", block_bytes=4, decode=_f32),
    1: TensorType(name="F16", block_bytes=2, decode=_half),
    2: _grouped_type("Q4_0", 18, _q4_0),
    3: _grouped_type("Q4_1", 20, _q4_1),
    8: _grouped_type("Q8_0", 34, _q8_0),
    12: TensorType(name="Q4_K", block_values=256, block_bytes=144, decode=_q4_k, groups=_q4_k_groups),
    13: TensorType(name="Q5_K", block_values=256, block_bytes=176, decode=_q5_k),
    14: TensorType(name="Q6_K", block_values=256, block_bytes=210, decode=_q6_k),
    30: TensorType(name="BF16", block_bytes=2, decode=_bf16),
} | {
    number: TensorType(name=name)
    for number, name in {
        6: "Q5_0",
        7: "Q5_1",
        9: "Q8_1",
        10: "Q2_K",
        11: "Q3_K",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        20: "IQ4_NL",
        21: "IQ3_S",
        22: "IQ2_S",
        23: "IQ4_XS",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        28: "F64",
        29: "IQ1_M",
        34: "TQ1_0",
        35: "TQ2_0",
        39: "MXFP4",
        40: "NVFP4",
    }.items()
}
"""Every known type by its number in the file."""
