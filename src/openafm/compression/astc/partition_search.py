"""Search for promising ones of ASTC's 1,024 ways to split a block in two: those with the smallest ranges of both parts.

The quantization error is proportional to the range. The largest and smallest weight of each part of each pattern are
combined from those of the subsets of each row, which all patterns share.

Shapes: S patterns, T texels of a block (36), N blocks, K candidates.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import BLOCK_SIZE, NUM_TEXELS, partition_table

_SUBSETS = 1 << BLOCK_SIZE
_PATTERNS_AT_ONCE = 64
_PATTERN_BITS = 10


@lru_cache
def distinct_seeds() -> NDArray[np.int64]:
    """Return the seeds of distinct patterns that split the block, regardless of the order of parts."""
    table_ST = partition_table(2)
    table_ST = np.where(table_ST[:, :1] == 1, 1 - table_ST, table_ST)
    _, seeds = np.unique(table_ST, axis=0, return_index=True)
    return np.sort(seeds[table_ST[seeds].any(1)])


def candidate_seeds(x_TN: NDArray[np.float32], num_candidates: int) -> NDArray[np.int64]:
    """Return promising patterns of each block, the best of each of K subsets of all patterns: [K, N]."""
    low_N, high_N = x_TN.min(0), x_TN.max(0)
    level_TN = ((x_TN - low_N) * (255 / np.maximum(high_N - low_N, np.float32(1e-30)))).astype(np.uint8)
    highest, negated_lowest = _subset_maxima(level_TN), _subset_maxima(255 - level_TN)
    seeds = distinct_seeds()
    second_ST = partition_table(2)[seeds]
    parts = [(_row_subsets(part_ST), part_ST.sum(1, dtype=np.uint32)) for part_ST in (second_ST, 1 - second_ST)]
    best_KN = []
    for share in np.array_split(np.arange(len(seeds)), num_candidates):
        best_N = np.full(x_TN.shape[1], np.iinfo(np.uint32).max, np.uint32)
        for some in np.array_split(share, -(-len(share) // _PATTERNS_AT_ONCE)):
            cost_SN = np.zeros((len(some), x_TN.shape[1]), np.uint32)
            for subset_SR, size_S in parts:
                cost_SN += _cost(highest, negated_lowest, subset_SR[some], size_S[some])
            # Cost and pattern in one number, because min is many times faster than argmin.
            cost_SN <<= _PATTERN_BITS
            cost_SN += some.astype(np.uint32)[:, None]
            np.minimum(best_N, cost_SN.min(0), out=best_N)
        best_KN.append(seeds[best_N & (1 << _PATTERN_BITS) - 1])
    return np.stack(best_KN)


def _cost(
    highest: NDArray[np.uint8],
    negated_lowest: NDArray[np.uint8],
    subset_SR: NDArray[np.int64],
    size_S: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """The squared range of a part times its size for each pattern and block, below 2^22."""
    range_SN = _largest(highest, subset_SR).astype(np.uint32)
    range_SN += _largest(negated_lowest, subset_SR)
    range_SN -= 255
    range_SN *= range_SN
    range_SN *= size_S[:, None]
    return range_SN


def _largest(maxima: NDArray[np.uint8], subset_SR: NDArray[np.int64]) -> NDArray[np.uint8]:
    largest_SN = maxima[subset_SR[:, 0]]
    for subset_S in subset_SR.T[1:]:
        np.maximum(largest_SN, maxima[subset_S], out=largest_SN)
    return largest_SN


def _row_subsets(part_ST: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The entries of `_subset_maxima` for each part: one for each row of the block."""
    bits_SRC = part_ST.reshape(-1, BLOCK_SIZE, BLOCK_SIZE)
    return bits_SRC @ (1 << np.arange(BLOCK_SIZE)) + _SUBSETS * np.arange(BLOCK_SIZE)


def _subset_maxima(level_TN: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The largest value of every subset of every row (0 of the empty set): [rows * subsets, N]."""
    maxima = np.zeros((NUM_TEXELS // BLOCK_SIZE, _SUBSETS, level_TN.shape[1]), np.uint8)
    for column in range(BLOCK_SIZE):
        known = 1 << column
        texel_RN = level_TN[column::BLOCK_SIZE]
        np.maximum(maxima[:, :known], texel_RN[:, None], out=maxima[:, known : 2 * known])
    return maxima.reshape(-1, level_TN.shape[1])
