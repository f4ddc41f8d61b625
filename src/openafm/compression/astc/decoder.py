"""Decode 6x6 ASTC blocks of single-channel textures, bit for bit like astcenc's fp16 decoder.

Blocks of the LDR profile decode to the same values. Compressed weights are decoded once, when a model is loaded.

Shapes: N blocks, B bits of a block (128), T texels (36, row by row), K stored numbers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import (
    NUM_TEXELS,
    BlockLayout,
    block_layout,
    color_levels,
    infill,
    num_endpoint_values,
    num_extra_mode_bits,
    partition_table,
    weight_grid,
    weight_levels,
)
from openafm.compression.astc.endpoints import HDR_MODES, RedEndpoints, red_ends
from openafm.compression.astc.integer_sequence import Bits, unpack
from openafm.compression.errors import CompressionError

_VOID_EXTENT = 0x1FC
_CHUNK = 8192  # blocks decoded together: their bits fit the cache


def decode_blocks(blocks_N16: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Return the values of each block, row by row: [N, 36].

    Raises:
        CompressionError: the format forbids a block.
    """
    values_NT = np.empty((len(blocks_N16), NUM_TEXELS), np.float16)
    for first in range(0, len(blocks_N16), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        values_NT[chunk] = _decode(np.unpackbits(np.ascontiguousarray(blocks_N16[chunk]), axis=1, bitorder="little"), first)
    return values_NT


def _decode(bits_NB: Bits, first_block: int) -> NDArray[np.float16]:
    """Decode blocks grouped by layout."""
    key_N = _layout_keys(bits_NB)
    values_NT = np.empty((len(bits_NB), NUM_TEXELS), np.float16)
    for key in np.unique(key_N).tolist():
        is_chosen_N = key_N == key
        chosen_NB = bits_NB if is_chosen_N.all() else bits_NB[is_chosen_N]
        decoded_NT: NDArray[np.float16] | None
        if key & 0x1FF == _VOID_EXTENT:
            decoded_NT = _void_extent(chosen_NB)
        else:
            layout = block_layout(key & 0x7FF, (key >> 11 & 3) + 1, key >> 13)
            decoded_NT = None if layout is None else _decode_layout(chosen_NB, layout)
        if decoded_NT is None:
            index = first_block + int(np.argmax(is_chosen_N))
            raise CompressionError(f"block {index} is not a legal ASTC 6x6 block; the file is damaged, restore it")
        values_NT[is_chosen_N] = decoded_NT
    return values_NT


def _field(bits_NB: Bits, first: int, num_bits: int) -> NDArray[np.int64]:
    return bits_NB[:, first : first + num_bits] @ (1 << np.arange(num_bits))


def _layout_keys(bits_NB: Bits) -> NDArray[np.int64]:
    """The fields that determine a layout as one number: block mode, partitions - 1, endpoint modes with extra bits."""
    key_N = _field(bits_NB, 0, 13)
    is_void_N = key_N & 0x1FF == _VOID_EXTENT
    num_partitions_N = (key_N >> 11) + 1
    mode_field_N = np.where(num_partitions_N == 1, _field(bits_NB, 13, 4), _field(bits_NB, 23, 6))
    mode_field_N[is_void_N] = 0
    for key in np.unique(key_N[(num_partitions_N > 1) & (mode_field_N & 3 > 0)]).tolist():
        grid, num_extra = weight_grid(key & 0x7FF), num_extra_mode_bits((key >> 11) + 1, 1)
        if grid is not None:
            extra_N = _field(bits_NB, 128 - grid.num_bits - num_extra, num_extra) << 6
            mode_field_N |= np.where((key_N == key) & (mode_field_N & 3 > 0), extra_N, 0)
    return key_N | mode_field_N << 13


def _decode_layout(bits_NB: Bits, layout: BlockLayout) -> NDArray[np.float16]:
    colors_NK = color_levels(layout.colors)[unpack(bits_NB[:, layout.first_color_bit :], layout.colors, layout.num_colors)]
    weight_NT = _texel_weights(bits_NB, layout)
    values_PNT = []
    first = 0
    for mode in layout.endpoint_modes:
        last = first + num_endpoint_values(mode)
        values_PNT.append(_interpolate(red_ends(mode, colors_NK[:, first:last]), weight_NT, mode in HDR_MODES))
        first = last
    if len(values_PNT) == 1:
        return values_PNT[0]
    partition_NT = partition_table(len(values_PNT))[_field(bits_NB, 13, 10)]
    return np.choose(partition_NT, values_PNT)


def _texel_weights(bits_NB: Bits, layout: BlockLayout) -> NDArray[np.int32]:
    """The weight 0..64 of each texel that applies to red."""
    grid = layout.grid
    weights_NK = weight_levels(grid.values)[unpack(bits_NB[:, ::-1], grid.values, grid.num_weights)]
    if layout.selector_bit is not None:
        is_red_N1 = _field(bits_NB, layout.selector_bit, 2)[:, None] == 0
        weights_NK = np.where(is_red_N1, weights_NK[:, 1::2], weights_NK[:, ::2])
    if weights_NK.shape[1] == NUM_TEXELS:
        return weights_NK
    corners_T4, shares_T4 = infill(grid.width, grid.height)
    return (weights_NK[:, corners_T4] * shares_T4).sum(2, dtype=np.int32) + 8 >> 4


def _interpolate(ends: RedEndpoints, weight_NT: NDArray[np.int32], is_hdr: bool) -> NDArray[np.float16]:
    code_NT = ends.low[:, None] * 64 + (ends.high - ends.low)[:, None] * weight_NT + 32 >> 6
    return (hdr_values() if is_hdr else ldr_values())[code_NT]


def _void_extent(bits_NB: Bits) -> NDArray[np.float16] | None:
    """Blocks of one value; None if the extent is empty, or the value is negative or not finite."""
    extent_N4 = np.stack([_field(bits_NB, first, 13) for first in (12, 25, 38, 51)], 1)
    is_constant_N = (extent_N4 == 0x1FFF).all(1)
    is_empty_N = (extent_N4[:, 0] >= extent_N4[:, 1]) | (extent_N4[:, 2] >= extent_N4[:, 3])
    if (is_empty_N & ~is_constant_N).any() or (_field(bits_NB, 10, 2) != 3).any():
        return None
    code_N = _field(bits_NB, 64, 16)
    value_N = np.where(bits_NB[:, 9], code_N.astype(np.uint16).view(np.float16), ldr_values()[code_N])
    is_code_N = np.isfinite(value_N) & ~np.signbit(value_N)
    return np.repeat(value_N[:, None], NUM_TEXELS, 1) if is_code_N.all() else None


@lru_cache
def ldr_values() -> NDArray[np.float16]:
    """Return the fp16 value of each 16-bit code of LDR modes: code / 65536 rounded toward zero, 1 for the last."""
    exact = np.arange(65536, dtype=np.float32) / np.float32(65536)
    rounded = exact.astype(np.float16)
    values = np.where(rounded > exact, np.nextafter(rounded, np.float16(0)), rounded)
    values[-1] = 1
    return values


@lru_cache
def hdr_values() -> NDArray[np.float16]:
    """Return the fp16 value of each 16-bit code of HDR modes: 5 bits of exponent, 11 of a piecewise linear mantissa."""
    exponent, mantissa = np.divmod(np.arange(65536), 2048)
    bent = np.select([mantissa < 512, mantissa >= 1536], [3 * mantissa, 5 * mantissa - 2048], 4 * mantissa - 512)
    return np.minimum((exponent << 10) + (bent >> 3), 0x7BFF).astype(np.uint16).view(np.float16)
