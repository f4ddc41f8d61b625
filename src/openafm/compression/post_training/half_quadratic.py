"""Half-quadratic quantization (HQQ): the minimum of each group that reduces the error of most weights, ignoring outliers.

It minimizes sum |w - w~|^p with p < 1 without calibration data. With an auxiliary error e for each weight,

    e       = argmin |e|^p + beta / 2 (e - (w - w~))^2     approximately sign(r) max(0, |r| - |r|^(p-1) / beta), r = w - w~
    minimum = mean(w - e - code * scale)                   exactly

are solved in turn, with growing beta. Of all steps the one with the smallest error is kept, for each group of each row.
Imports no tensor library.

Shapes: R rows, g numbers of a group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from openafm.compression.post_training.groups import ClippedRange, Codes, Floats, Grid, MinMaxRange, RangeConfig

_STARTS = (MinMaxRange(), ClippedRange(smallest=0.8, num_steps=4))


@dataclass(frozen=True, kw_only=True)
class HalfQuadraticRange(RangeConfig):
    """The range of the nearest or of a clipped rounding, moved to reduce sum |w - w~|^`power`.

    Attributes:
        beta: weight of the quadratic term at first, relative to the group's scale; each step multiplies it by `growth`.
    """

    power: float = 0.7
    beta: float = 10.0
    growth: float = 1.01
    num_steps: int = 20

    def __post_init__(self) -> None:
        self.require(0 < self.power <= 1, f"power must be above 0 and at most 1, got {self.power}")
        self.require(self.beta > 0, f"beta must be positive, got {self.beta}")
        self.require(self.growth >= 1, f"growth must be at least 1, got {self.growth}")
        self.require(self.num_steps > 0, f"num_steps must be at least 1, got {self.num_steps}")

    def grid(self, weight_Rg: Floats, bits: int) -> Grid:
        starts = [start.grid(weight_Rg, bits) for start in _STARTS]
        nearest, clipped = (_Step.of(grid, weight_Rg, self.power) for grid in starts)
        step = best = nearest.or_better(clipped)
        beta = self.beta
        for _ in range(self.num_steps):
            step = _Step.of(step.moved(beta, self.power), weight_Rg, self.power)
            best = best.or_better(step)
            beta *= self.growth
        return best.grid


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A grid, the codes of the weights, what these leave, and the sum of |w - w~|^p of each row."""

    grid: Grid
    codes_Rg: Codes
    rest_Rg: Floats
    error_R: Floats

    @classmethod
    def of(cls, grid: Grid, weight_Rg: Floats, power: float) -> _Step:
        codes_Rg = grid.codes(weight_Rg)
        rest_Rg = weight_Rg - grid.values(codes_Rg)
        return cls(grid=grid, codes_Rg=codes_Rg, rest_Rg=rest_Rg, error_R=(np.abs(rest_Rg) ** np.float32(power)).sum(1))

    def moved(self, beta: float, power: float) -> Grid:
        """Return the grid with the minimum that fits the codes best, outliers left out."""
        scale_R1 = np.maximum(self.grid.scale_R.astype(np.float32), np.float32(2**-24))[:, None]
        size_Rg = np.maximum(np.abs(self.rest_Rg) / scale_R1, np.float32(1e-6))
        kept_Rg = np.minimum(size_Rg, size_Rg ** np.float32(power - 1) / np.float32(beta))  # the error without its outlier
        minimum_R = self.grid.minimum_R.astype(np.float32) + (np.copysign(kept_Rg, self.rest_Rg) * scale_R1).mean(1)
        return replace(self.grid, minimum_R=minimum_R.astype(np.float16))

    def or_better(self, other: _Step) -> _Step:
        """Return, for each row, the step with the smaller error."""
        better_R = other.error_R < self.error_R
        better_R1 = better_R[:, None]
        return _Step(
            grid=Grid(
                scale_R=np.where(better_R, other.grid.scale_R, self.grid.scale_R),
                minimum_R=np.where(better_R, other.grid.minimum_R, self.grid.minimum_R),
                bits=self.grid.bits,
            ),
            codes_Rg=np.where(better_R1, other.codes_Rg, self.codes_Rg),
            rest_Rg=np.where(better_R1, other.rest_Rg, self.rest_Rg),
            error_R=np.where(better_R, other.error_R, self.error_R),
        )
