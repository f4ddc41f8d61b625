"""The values available to a block: positions between two end points, and components of end points.

Shapes: T texels of a block (36), N blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import color_levels, weight_levels
from openafm.compression.astc.integer_sequence import IntegerRange

_STEPS = 256  # of the lookup table for the nearest position
_MAX_COMPONENT = 255


@dataclass(frozen=True)
class Positions:
    """The weights of a range as ascending positions 0..1 between the end points."""

    weights: IntegerRange

    @cached_property
    def stored(self) -> NDArray[np.uint8]:
        """The stored number of each position."""
        return np.argsort(weight_levels(self.weights)).astype(np.uint8)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        return np.sort(weight_levels(self.weights)).astype(np.float32) / np.float32(64)

    def nearest(self, fraction_TN: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the position nearest to each fraction 0..1."""
        return np.take(self._values_of_steps, _steps(fraction_TN), mode="clip")

    def nearest_rank(self, fraction_TN: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the rank of the position nearest to each fraction."""
        return np.take(self._ranks_of_steps, _steps(fraction_TN), mode="clip")

    @cached_property
    def _ranks_of_steps(self) -> NDArray[np.uint8]:
        middles = (self.values[1:] + self.values[:-1]) / 2
        return np.searchsorted(middles, (np.arange(_STEPS) + 0.5) / _STEPS).astype(np.uint8)

    @cached_property
    def _values_of_steps(self) -> NDArray[np.float32]:
        return self.values[self._ranks_of_steps]


def _steps(fraction_TN: NDArray[np.float32]) -> NDArray[np.uint8]:
    scaled_TN = fraction_TN * np.float32(_STEPS)
    return np.clip(scaled_TN, 0, _STEPS - 1, out=scaled_TN).astype(np.uint8)


@dataclass(frozen=True)
class Components:
    """The components 0..255 of a range of colors, ascending."""

    colors: IntegerRange

    @cached_property
    def stored(self) -> NDArray[np.uint8]:
        """The stored number of each component."""
        return np.argsort(color_levels(self.colors)).astype(np.uint8)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The components divided by 255."""
        return np.sort(color_levels(self.colors)).astype(np.float32) / np.float32(_MAX_COMPONENT)

    def rank_below(self, value: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the rank of the largest component that is at most the value, or of the smallest component."""
        return self._ranks_below[np.clip(value * _MAX_COMPONENT, 0, _MAX_COMPONENT).astype(np.uint8)]

    @cached_property
    def _ranks_below(self) -> NDArray[np.int64]:
        return np.searchsorted(np.sort(color_levels(self.colors)), np.arange(_MAX_COMPONENT + 1), side="right") - 1
