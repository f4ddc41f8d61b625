"""Encode 6x6 ASTC blocks that store every weight: six levels in one partition, or four levels in each of two.

Other layouts interpolate weights between grid points, which suits textures but not matrices, whose neighbors are unrelated.

Shapes: T texels of a block (36, row by row), N blocks, P partitions, K stored numbers, B bits (128).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import BLOCK_BITS, NUM_TEXELS, BlockLayout, block_layout, partition_table
from openafm.compression.astc.config import AstcConfig
from openafm.compression.astc.integer_sequence import pack
from openafm.compression.astc.level_search import EndPairs, Floats, Ranks, Texels, best_ends
from openafm.compression.astc.levels import Components, Positions
from openafm.compression.astc.partition_search import candidate_seeds

_LDR_LUMINANCE, _HDR_LUMINANCE = 0, 2
_CHUNK = 1024  # blocks encoded together: the working set fits the L2 cache


class Format:
    """One of the two layouts, with endpoints of one mode."""

    def __init__(self, block_mode: int, num_partitions: int, endpoint_mode: int) -> None:
        self.num_partitions = num_partitions
        several = num_partitions > 1
        layout = block_layout(block_mode, num_partitions, endpoint_mode << 2 if several else endpoint_mode)
        assert layout is not None
        self.layout: BlockLayout = layout
        self.positions = Positions(layout.grid.values)
        self.components = Components(layout.colors)
        self.config = block_mode | num_partitions - 1 << 11 | endpoint_mode << (25 if several else 13)


ONE_PARTITION = Format(0x10C, 1, _LDR_LUMINANCE)
TWO_PARTITIONS = Format(0x108, 2, _LDR_LUMINANCE)
ONE_PARTITION_HDR = Format(0x10C, 1, _HDR_LUMINANCE)


@dataclass(frozen=True)
class Fit:
    """Blocks of one format with their patterns and end points; the level of each weight is still open."""

    format: Format
    index_N: NDArray[np.int64]  # among the blocks that were fitted together
    seed_N: NDArray[np.int64]  # of the pattern; 0 with one partition
    ranks: Ranks

    @cached_property
    def _low(self) -> Floats:
        """The value of each texel at its first level: [T, N]."""
        return self._of_texels(self._ends.low_PN)

    @cached_property
    def _span(self) -> Floats:
        """The difference between last and first level: [T, N]."""
        return self._of_texels(self._ends.high_PN - self._ends.low_PN)

    @property
    def _ends(self) -> EndPairs:
        return self.ranks.ends(self.format.components)

    def nearest_levels(self, x_TN: Floats, texels: slice = slice(None)) -> NDArray[np.uint8]:
        """Return the nearest level of each weight, for all or some texels."""
        span_TN = self._span[texels]
        divisor_TN: Any = np.where(span_TN == 0, np.float32(1), span_TN)  # numpy's stubs make it fp64
        return self.format.positions.nearest_rank((x_TN - self._low[texels]) / divisor_TN)

    def values(self, level_TN: NDArray[np.uint8], texels: slice = slice(None)) -> Floats:
        """Return the decoded values of levels, up to the decoder's rounding to fp16."""
        return self._low[texels] + self._span[texels] * np.take(self.format.positions.values, level_TN)

    def errors(self, x_TN: Floats) -> Floats:
        """Return the squared error of each block: [N]."""
        left_TN = x_TN - self.values(self.nearest_levels(x_TN))
        return np.einsum("tn,tn->n", left_TN, left_TN)

    def of_blocks(self, place_N: NDArray[np.int64]) -> Fit:
        """Return the fit of some blocks."""
        return Fit(self.format, self.index_N[place_N], self.seed_N[place_N], self.ranks.of_blocks(place_N))

    def write(self, level_TN: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the blocks [N, 16]."""
        layout, num_blocks = self.format.layout, len(self.seed_N)
        bits_NB = np.zeros((num_blocks, BLOCK_BITS), np.uint8)
        config_N = self.seed_N << 13 | self.format.config
        bits_NB[:, :32] = np.unpackbits(config_N.astype("<u4")[:, None].view(np.uint8), axis=1, bitorder="little")
        ends_NK = np.stack([self.ranks.low_PN, self.ranks.high_PN], 1).reshape(layout.num_colors, num_blocks).T
        colors_NB = pack(self.format.components.stored[ends_NK], layout.colors)
        bits_NB[:, layout.first_color_bit : layout.first_color_bit + colors_NB.shape[1]] = colors_NB
        weights_NB = pack(self.format.positions.stored[level_TN.T], layout.grid.values)
        bits_NB[:, BLOCK_BITS - weights_NB.shape[1] :] = weights_NB[:, ::-1]
        return np.packbits(bits_NB, axis=1, bitorder="little")

    def _of_texels(self, values_PN: Floats) -> Floats:
        second_TN = None if self.format.num_partitions == 1 else second_partition(self.seed_N)
        return np.broadcast_to(Texels(values_PN, second_TN).spread(values_PN), (NUM_TEXELS, len(self.seed_N)))


def encode_blocks(x_TN: Floats, config: AstcConfig) -> NDArray[np.uint8]:
    """Return blocks [N, 16] for values 0..1."""
    blocks_N16 = np.empty((x_TN.shape[1], BLOCK_BITS // 8), np.uint8)
    for first in range(0, x_TN.shape[1], _CHUNK):
        chunk_TN = np.ascontiguousarray(x_TN[:, first : first + _CHUNK])
        for fit in fit_blocks(chunk_TN, config):
            blocks_N16[first + fit.index_N] = fit.write(fit.nearest_levels(chunk_TN[:, fit.index_N]))
    return blocks_N16


def fit_blocks(x_TN: Floats, config: AstcConfig) -> list[Fit]:
    """Return the best number of partitions, pattern and end points of blocks with values 0..1, as non-empty fits."""
    one = _fit_one(x_TN)
    if config.partitions == 1:
        return [one]
    two = _fit_two(x_TN, candidate_seeds(x_TN, config.num_candidates))
    is_two_N = two.errors(x_TN) < one.errors(x_TN)
    fits = one.of_blocks(np.flatnonzero(~is_two_N)), two.of_blocks(np.flatnonzero(is_two_N))
    return [fit for fit in fits if len(fit.index_N)]


def _fit_one(x_TN: Floats) -> Fit:
    ranks = best_ends(Texels(x_TN, None), ONE_PARTITION.positions, ONE_PARTITION.components)
    every_N = np.arange(x_TN.shape[1])
    return Fit(ONE_PARTITION, every_N, np.zeros_like(every_N), ranks)


def _fit_two(x_TN: Floats, seeds_KN: NDArray[np.int64]) -> Fit:
    """The fit with the best candidate pattern of each block."""
    x_TM, seed_M = np.tile(x_TN, len(seeds_KN)), seeds_KN.ravel()
    ranks = best_ends(Texels(x_TM, second_partition(seed_M)), TWO_PARTITIONS.positions, TWO_PARTITIONS.components)
    every = Fit(TWO_PARTITIONS, np.arange(len(seed_M)), seed_M, ranks)
    best_N = every.errors(x_TM).reshape(seeds_KN.shape).argmin(0)
    every_N = np.arange(len(best_N))
    return replace(every.of_blocks(best_N * len(best_N) + every_N), index_N=every_N)


def second_partition(seed_N: NDArray[np.int64]) -> Floats:
    """Return 1 where a texel is in the second partition: [T, N]."""
    return np.ascontiguousarray(partition_table(2).T.astype(np.float32)[:, seed_N])
