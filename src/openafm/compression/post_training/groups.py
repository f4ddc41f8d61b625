"""Rounding in groups: consecutive numbers of a row share an fp16 scale and an fp16 minimum. Imports no tensor library.

    code = clamp(round((w - minimum) / scale), 0, 2^bits - 1),   w~ = minimum + code * scale

Everything is computed in fp32 from the fp16 numbers, in this order, so that every implementation gives the same bits:
code * scale is exact, only the sum is rounded.

Shapes: R rows, C columns (the input axis), G groups of a row, g numbers of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.compression.errors import CompressionError
from openafm.core.config import Config

Floats: TypeAlias = NDArray[np.float32]
Halves: TypeAlias = NDArray[np.float16]
Codes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The levels of one group of every row: minimum + code * scale."""

    scale_R: Halves
    minimum_R: Halves
    bits: int

    def codes(self, weight_Rg: Floats) -> Codes:
        """Return the nearest levels. A constant group has scale zero."""
        scale_R1, minimum_R1 = self.scale_R.astype(np.float32)[:, None], self.minimum_R.astype(np.float32)[:, None]
        steps_Rg = np.rint((weight_Rg - minimum_R1) / np.where(scale_R1 > 0, scale_R1, np.float32(1)))
        return np.clip(steps_Rg, 0, 2**self.bits - 1).astype(np.uint8) * (scale_R1 > 0)

    def values(self, codes_Rg: Codes) -> Floats:
        scale_R1, minimum_R1 = self.scale_R.astype(np.float32)[:, None], self.minimum_R.astype(np.float32)[:, None]
        return minimum_R1 + codes_Rg.astype(np.float32) * scale_R1


@dataclass(frozen=True, kw_only=True)
class RangeConfig(Config, ABC):
    """Base of the ways to choose the range of a group's levels."""

    @abstractmethod
    def grid(self, weight_Rg: Floats, bits: int) -> Grid:
        """Return the levels of one group of every row."""


@dataclass(frozen=True, kw_only=True)
class MinMaxRange(RangeConfig):
    """From the smallest number of the group to its largest."""

    def grid(self, weight_Rg: Floats, bits: int) -> Grid:
        return _grid_between(weight_Rg.min(1), weight_Rg.max(1), bits)


@dataclass(frozen=True, kw_only=True)
class ClippedRange(RangeConfig):
    """The full range shrunk towards its middle, to no less than `smallest` of it, where this reduces the squared error.

    Idempotent: the full range of quantized values has error zero.
    """

    smallest: float = 0.35
    num_steps: int = 26

    def __post_init__(self) -> None:
        self.require(0 < self.smallest < 1, f"smallest must be between 0 and 1, got {self.smallest}")
        self.require(self.num_steps > 0, f"num_steps must be at least 1, got {self.num_steps}")

    def grid(self, weight_Rg: Floats, bits: int) -> Grid:
        low_R, high_R = weight_Rg.min(1), weight_Rg.max(1)
        middle_R, half_R = (low_R + high_R) / 2, (high_R - low_R) / 2
        best = _grid_between(low_R, high_R, bits)
        error_R = _squared_error(best, weight_Rg)
        for share in np.linspace(1, self.smallest, self.num_steps + 1, dtype=np.float32)[1:]:
            tried = _grid_between(middle_R - share * half_R, middle_R + share * half_R, bits)
            tried_error_R = _squared_error(tried, weight_Rg)
            better_R = tried_error_R < error_R
            error_R = np.where(better_R, tried_error_R, error_R)
            best = Grid(
                scale_R=np.where(better_R, tried.scale_R, best.scale_R),
                minimum_R=np.where(better_R, tried.minimum_R, best.minimum_R),
                bits=bits,
            )
        return best


def _grid_between(low_R: Floats, high_R: Floats, bits: int) -> Grid:
    """Levels from the rounded minimum to the maximum; multiplies by the reciprocal, as GPUs do."""
    minimum_R = low_R.astype(np.float16)
    reach_R = np.maximum(high_R - minimum_R.astype(np.float32), np.float32(0))
    return Grid(scale_R=(reach_R * np.float32(1 / (2**bits - 1))).astype(np.float16), minimum_R=minimum_R, bits=bits)


def _squared_error(grid: Grid, weight_Rg: Floats) -> Floats:
    error_Rg = grid.values(grid.codes(weight_Rg)) - weight_Rg
    return np.einsum("rg,rg->r", error_Rg, error_Rg)


@dataclass(frozen=True, kw_only=True)
class GroupQuantized:
    """A matrix as codes, one per byte, with a scale and a minimum for every group of a row; the last may be shorter."""

    codes_RC: Codes
    scale_RG: Halves
    minimum_RG: Halves
    bits: int
    group: int

    def dequantize(self) -> Floats:
        """Return the fp32 values [R, C]."""
        groups = np.arange(self.codes_RC.shape[1]) // self.group
        scale_RC, minimum_RC = (x.astype(np.float32)[:, groups] for x in (self.scale_RG, self.minimum_RG))
        return minimum_RC + self.codes_RC.astype(np.float32) * scale_RC

    @property
    def bits_per_weight(self) -> float:
        """Bits of codes, scales and minima per number of the matrix."""
        return self.bits + 16 * (self.scale_RG.size + self.minimum_RG.size) / self.codes_RC.size


def quantize_groups(
    weight_RC: Floats, *, bits: int, group: int, range: RangeConfig, name: str = "the matrix"
) -> GroupQuantized:
    """Return a matrix rounded in groups; the last group of a row is shorter if `group` does not divide the row.

    Raises:
        CompressionError: the weight is not a matrix, is empty, is not finite or exceeds fp16; the message holds `name`.
    """
    weight_RC = checked_matrix(weight_RC, name)
    slices = group_slices(weight_RC.shape[1], group)
    with np.errstate(over="ignore", invalid="ignore"):  # `assembled` checks
        grids = [range.grid(weight_RC[:, columns], bits) for columns in slices]
        codes = [grid.codes(weight_RC[:, columns]) for grid, columns in zip(grids, slices, strict=True)]
    return assembled(np.concatenate(codes, axis=1), grids, group, name)


def assembled(codes_RC: Codes, grids: list[Grid], group: int, name: str) -> GroupQuantized:
    """Return the groups of a matrix combined.

    Raises:
        CompressionError: a scale or minimum exceeds fp16.
    """
    scale_RG = np.stack([grid.scale_R for grid in grids], axis=1)
    minimum_RG = np.stack([grid.minimum_R for grid in grids], axis=1)
    if not (np.isfinite(scale_RG).all() and np.isfinite(minimum_RG).all()):
        raise CompressionError(f"{name} holds numbers above 65,504, the largest of fp16; scale it down")
    return GroupQuantized(codes_RC=codes_RC, scale_RG=scale_RG, minimum_RG=minimum_RG, bits=grids[0].bits, group=group)


def group_slices(num_columns: int, group: int) -> list[slice]:
    """Return the columns of each group of a row."""
    return [slice(start, min(start + group, num_columns)) for start in range(0, num_columns, group)]


def checked_matrix(weight_RC: Floats, name: str) -> Floats:
    """Return the matrix in fp32.

    Raises:
        CompressionError: the weight is not a matrix, is empty or is not finite; the message holds `name`.
    """
    weight_RC = np.asarray(weight_RC, dtype=np.float32)
    if weight_RC.ndim != 2 or weight_RC.size == 0:
        raise CompressionError(f"{name} has shape {list(weight_RC.shape)}; expected a matrix with at least one number")
    if not np.isfinite(weight_RC).all():
        raise CompressionError(f"{name} holds a value that is not finite; the model diverged, train it again")
    return weight_RC
