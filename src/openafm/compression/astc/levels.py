"""What a block can choose from: positions between two ends, and components that an end can have.

Shapes: T texels of a block (36), N blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import color_levels, weight_levels
from openafm.compression.astc.integer_sequence import IntegerRange

_STEPS = 256  # of the table that finds the nearest position
_MAX_COMPONENT = 255


@dataclass(frozen=True)
class Positions:
    """The weights of a range as positions 0..1 from one end to the other, ascending."""

    weights: IntegerRange

    @cached_property
    def stored(self) -> NDArray[np.uint8]:
        """The number that stores each position."""
        return np.argsort(weight_levels(self.weights)).astype(np.uint8)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        return np.sort(weight_levels(self.weights)).astype(np.float32) / np.float32(64)

    def nearest(self, fraction_TN: NDArray[np.float32]) -> NDArray[np.float32]:
        """The position nearest to each fraction of the way."""
        return np.take(self._values_of_steps, _steps(fraction_TN), mode="clip")

    def nearest_rank(self, fraction_TN: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Its place in the ascending order."""
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
    """The components 0..255 that a range of colors has, ascending."""

    colors: IntegerRange

    @cached_property
    def stored(self) -> NDArray[np.uint8]:
        """The number that stores each component."""
        return np.argsort(color_levels(self.colors)).astype(np.uint8)

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The components in units of the largest."""
        return np.sort(color_levels(self.colors)).astype(np.float32) / np.float32(_MAX_COMPONENT)

    def rank_below(self, value: NDArray[np.float32]) -> NDArray[np.int64]:
        """The rank of the largest component that is not above a value, of the least one where there is none."""
        return self._ranks_below[np.clip(value * _MAX_COMPONENT, 0, _MAX_COMPONENT).astype(np.uint8)]

    @cached_property
    def _ranks_below(self) -> NDArray[np.int64]:
        return np.searchsorted(np.sort(color_levels(self.colors)), np.arange(_MAX_COMPONENT + 1), side="right") - 1
