"""The report's recipe: each block minus its minimum, with HDR endpoints, which have a logarithmic code.

Levels are dense near the minimum. Encoders for images minimize the error in the logarithmic code, which doubles the error
compared with linear endpoints. This encoder tries pairs of end points and minimizes the error of the weights.

Shapes: T texels of a block (36), N blocks, L levels (6).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import BLOCK_BITS
from openafm.compression.astc.decoder import hdr_values
from openafm.compression.astc.encoder import ONE_PARTITION_HDR, Fit
from openafm.compression.astc.level_search import Floats, Ranks

# In eighths of an octave: the high end point lies near the largest weight, the low one this far below it.
_ABOVE_LARGEST = range(-2, 2)
_BELOW_HIGH = range(10, 44, 2)
_CHUNK = 1024


@dataclass(frozen=True)
class MinimumAndRest:
    """Blocks [N, 16] of the weights minus the fp16 minima [N]."""

    minima: NDArray[np.float16]
    blocks: NDArray[np.uint8]


def encode_above_minimum(x_TN: Floats) -> MinimumAndRest:
    """Return the minima of blocks and the encoded rest; weights must fit fp16."""
    least_N = x_TN.min(0)
    minima_N = least_N.astype(np.float16)
    minima_N = np.where(minima_N > least_N, np.nextafter(minima_N, np.float16(-np.inf)), minima_N)
    blocks_N16 = np.empty((x_TN.shape[1], BLOCK_BITS // 8), np.uint8)
    for first in range(0, x_TN.shape[1], _CHUNK):
        chunk = slice(first, first + _CHUNK)
        blocks_N16[chunk] = _encode(x_TN[:, chunk] - minima_N[chunk].astype(np.float32))
    return MinimumAndRest(minima_N, blocks_N16)


def _encode(rest_TN: Floats) -> NDArray[np.uint8]:
    largest_N = (np.searchsorted(hdr_values(), rest_TN.max(0).astype(np.float16)) >> 8).astype(np.int64)
    low_N, high_N = np.zeros_like(largest_N), largest_N
    best_error_N = np.full(len(largest_N), np.inf, np.float32)
    for above, below in product(_ABOVE_LARGEST, _BELOW_HIGH):
        try_high_N = np.clip(largest_N + above, 0, 0xFF)
        try_low_N = np.maximum(try_high_N - below, 0)
        error_TN = _distance(rest_TN, _level_values(try_low_N, try_high_N))
        error_N = np.einsum("tn,tn->n", error_TN, error_TN)
        is_better_N = error_N < best_error_N
        best_error_N = np.minimum(error_N, best_error_N)
        low_N, high_N = np.where(is_better_N, try_low_N, low_N), np.where(is_better_N, try_high_N, high_N)
    values_LN = _level_values(low_N, high_N)
    level_TN = sum(
        (rest_TN > middle_N for middle_N in (values_LN[1:] + values_LN[:-1]) / 2), np.zeros(rest_TN.shape, np.uint8)
    )
    zero_N = np.zeros_like(low_N)
    return Fit(ONE_PARTITION_HDR, np.arange(len(low_N)), zero_N, Ranks(low_N[None], high_N[None])).write(level_TN)


def _level_values(low_N: NDArray[np.int64], high_N: NDArray[np.int64]) -> Floats:
    """The decoded value of each level: [L, N]."""
    weight_L1 = np.rint(ONE_PARTITION_HDR.positions.values * 64).astype(np.int64)[:, None]
    return hdr_values()[low_N * (64 - weight_L1) + high_N * weight_L1 << 8 >> 6].astype(np.float32)


def _distance(rest_TN: Floats, values_LN: Floats) -> Floats:
    """The distance of each weight from its nearest level."""
    distance_TN = np.abs(rest_TN - values_LN[0])
    for value_N in values_LN[1:]:
        other_TN = rest_TN - value_N
        np.minimum(distance_TN, np.abs(other_TN, out=other_TN), out=distance_TN)
    return distance_TN
