"""Search for the end points of each partition of a block with the smallest squared error.

Levels are fixed fractions between two end points, so for given levels the best end points are a least squares line through
the weights. Many pairs of end points are tried, from slightly outside the range of the weights to well inside; each gives
levels, these give a line, and the best line is used. The arithmetic is vectorized over blocks.

Shapes: T texels of a block (36), N blocks, P partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.levels import Components, Positions

Floats: TypeAlias = NDArray[np.float32]

# Number and spacing of the tried end points, relative to the range of the weights. With fewer levels the best end points are
# further inside.
_STARTS = {1: (6, 0.04), 2: (3, 0.1)}
_FAR = np.float32(1e30)
_TINY = np.float32(1e-30)


@dataclass(frozen=True)
class Texels:
    """Weights of blocks. `second_TN` is 1 for weights in the second of two partitions; None with one partition."""

    x_TN: Floats
    second_TN: Floats | None

    @property
    def num_partitions(self) -> int:
        return 1 if self.second_TN is None else 2

    def totals(self, values_TN: Floats) -> Floats:
        """Return the sums over each partition: [P, N]."""
        all_N = values_TN.sum(0)
        if self.second_TN is None:
            return all_N[None]
        second_N = np.einsum("tn,tn->n", values_TN, self.second_TN)
        return np.stack([all_N - second_N, second_N])

    def spread(self, values_PN: Floats) -> Floats:
        """Return the value of each texel's partition: [T, N] or broadcastable."""
        if self.second_TN is None:
            return values_PN[0]
        spread_TN = self.second_TN * (values_PN[1] - values_PN[0])
        return np.add(spread_TN, values_PN[0], out=spread_TN)

    def along(self, ends: EndPairs) -> Floats:
        """Return the position of each weight between its end points, as a fraction."""
        fraction_TN = self.x_TN - self.spread(ends.low_PN)
        slope_PN = ends.high_PN - ends.low_PN
        inverse_PN = np.where(np.abs(slope_PN) < _TINY, 0, 1 / np.where(slope_PN == 0, 1, slope_PN)).astype(np.float32)
        fraction_TN *= self.spread(inverse_PN)
        return fraction_TN

    def ranges(self) -> EndPairs:
        """Return the smallest and largest weight of each partition."""
        if self.second_TN is None:
            return EndPairs(self.x_TN.min(0)[None], self.x_TN.max(0)[None])
        away_TN = self.second_TN * _FAR, (1 - self.second_TN) * _FAR
        low_PN = np.stack([(self.x_TN + away).min(0) for away in away_TN])
        high_PN = np.stack([(self.x_TN - away).max(0) for away in away_TN])
        return EndPairs(low_PN, high_PN)


@dataclass(frozen=True)
class EndPairs:
    """The values at positions 0 and 1 of each partition."""

    low_PN: Floats
    high_PN: Floats


@dataclass(frozen=True)
class Ranks:
    """End points as ranks among the components."""

    low_PN: NDArray[np.int64]
    high_PN: NDArray[np.int64]

    def of_blocks(self, index_N: NDArray[np.int64]) -> Ranks:
        """Return the ranks of some blocks, in the given order."""
        return Ranks(self.low_PN[:, index_N], self.high_PN[:, index_N])

    def ends(self, components: Components) -> EndPairs:
        return EndPairs(components.values[self.low_PN], components.values[self.high_PN])


@dataclass(frozen=True)
class _Sums:
    """The sums that determine a line through weights x at positions w."""

    count_PN: Floats
    x_PN: Floats
    w_PN: Floats
    ww_PN: Floats
    xw_PN: Floats

    @staticmethod
    def of(texels: Texels, w_TN: Floats) -> _Sums:
        ones_TN = np.ones_like(texels.x_TN)
        empty = _Sums(texels.totals(ones_TN), texels.totals(texels.x_TN), *3 * (np.empty(0, np.float32),))
        return empty.at(texels, w_TN)

    def at(self, texels: Texels, w_TN: Floats) -> _Sums:
        """Return the sums with other positions."""
        return replace(
            self, w_PN=texels.totals(w_TN), ww_PN=texels.totals(w_TN * w_TN), xw_PN=texels.totals(texels.x_TN * w_TN)
        )

    def line(self) -> EndPairs:
        """Return the least squares end points; both are the mean if all weights have one position."""
        count_PN: Any = np.maximum(self.count_PN, np.float32(1))  # numpy's stubs make it fp64
        spread_PN = np.maximum(count_PN * self.ww_PN - self.w_PN * self.w_PN, np.float32(1e-6))
        slope_PN = (count_PN * self.xw_PN - self.w_PN * self.x_PN) / spread_PN
        low_PN = (self.x_PN - slope_PN * self.w_PN) / count_PN
        return EndPairs(low_PN, low_PN + slope_PN)

    def cost(self, ends: EndPairs) -> Floats:
        """Return the squared error with these end points, less the sum of squares of the weights."""
        slope_PN = ends.high_PN - ends.low_PN
        of_low_PN = ends.low_PN * (ends.low_PN * self.count_PN + 2 * (slope_PN * self.w_PN - self.x_PN))
        return of_low_PN + slope_PN * (slope_PN * self.ww_PN - 2 * self.xw_PN)


def best_ends(texels: Texels, positions: Positions, components: Components) -> Ranks:
    """Return the best end points found for the weights 0..1 of each block."""
    ends = _best_start(texels, positions)
    sums = _Sums.of(texels, positions.nearest(texels.along(ends)))
    sums = sums.at(texels, positions.nearest(texels.along(sums.line())))
    return _rounded(sums, components)


def _best_start(texels: Texels, positions: Positions) -> EndPairs:
    """The best line over all starts, computed with the weights of each partition mapped to 0..1."""
    ranges = texels.ranges()
    unit_TN = texels.along(ranges)
    unit = replace(texels, x_TN=unit_TN)
    num_starts, step = _STARTS[texels.num_partitions]
    sums = _Sums.of(unit, unit_TN)
    best, best_cost_PN = sums.line(), np.full_like(ranges.low_PN, np.inf)
    for i, j in product(range(-1, num_starts - 1), repeat=2):
        low, high = step * i, 1 - step * j
        shrunk_TN = unit_TN - np.float32(low)
        shrunk_TN *= np.float32(1 / (high - low))
        sums = sums.at(unit, positions.nearest(shrunk_TN))
        line = sums.line()
        cost_PN = sums.cost(line)
        is_better_PN = cost_PN < best_cost_PN
        best_cost_PN = np.minimum(cost_PN, best_cost_PN)
        best = EndPairs(np.where(is_better_PN, line.low_PN, best.low_PN), np.where(is_better_PN, line.high_PN, best.high_PN))
    span_PN = ranges.high_PN - ranges.low_PN
    return EndPairs(ranges.low_PN + span_PN * best.low_PN, ranges.low_PN + span_PN * best.high_PN)


def _rounded(sums: _Sums, components: Components) -> Ranks:
    """The best pair among the components below and above each end point, for the given positions."""
    line = sums.line()
    below = Ranks(components.rank_below(line.low_PN), components.rank_below(line.high_PN))
    best, best_cost_PN = below, np.full_like(line.low_PN, np.inf)
    for up_low, up_high in product((0, 1), repeat=2):
        last = len(components.values) - 1
        ranks = Ranks(np.minimum(below.low_PN + up_low, last), np.minimum(below.high_PN + up_high, last))
        cost_PN = sums.cost(ranks.ends(components))
        is_better_PN = cost_PN < best_cost_PN
        best_cost_PN = np.minimum(cost_PN, best_cost_PN)
        best = Ranks(np.where(is_better_PN, ranks.low_PN, best.low_PN), np.where(is_better_PN, ranks.high_PN, best.high_PN))
    return best
