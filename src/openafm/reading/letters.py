"""Letters from the probabilities of cells.

The middle of a letter lies in one cell, or near the border of two, which then share its probability. Cells are therefore
merged until the probabilities of a letter sum to one.

Shapes: R rows and C columns of cells of a view, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openafm.models.vision.letters import CELL, CHARACTERS, NO_LETTER, NUM_CLASSES

LEAST_CELL = 0.1
"""Cells with a lower probability of a letter start none."""
LEAST_LETTER = 0.15
"""Probability of a letter, summed over its cells. The spelling of a line decides about unlikely ones."""
MOST_LETTERS = 4_000
"""Letters of a view: those of a full page. A picture of noise would have ten times as many."""
_NEIGHBORS = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if (row, column) != (0, 0)]
_LEAST_SHARE = 0.02


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A letter, or the space between two words.

    `x` and `y` are its middle in pixels of the page, `unit` the number of these in a pixel of the view that has the letter,
    `probability` that it is there, and `classes_K` are the probabilities of the classes if it is.
    """

    x: float
    y: float
    unit: float
    probability: float
    classes_K: NDArray[np.float32]

    @property
    def character(self) -> str:
        """The likeliest character; a space for the gap between two words."""
        return CHARACTERS[int(self.classes_K.argmax())]


def letters_of_view(probabilities_RCK: NDArray[np.float32], page: tuple[float, float]) -> list[Letter]:
    """Return the letters of a view, the surest first. `page` are the width and the height of the page in its own pixels."""
    cell_width, cell_height = page[0] / probabilities_RCK.shape[1], page[1] / probabilities_RCK.shape[0]
    unit = math.sqrt(cell_width * cell_height / (CELL[0] * CELL[1]))
    there_RC = 1 - probabilities_RCK[..., NO_LETTER]
    left_RC = np.pad(there_RC, 1)  # what no letter has taken; cells beyond the border have nothing
    rows, columns = np.nonzero(there_RC > LEAST_CELL)
    order = np.argsort(-there_RC[rows, columns], kind="stable")
    letters = []
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        taken = list(_taken(left_RC, probabilities_RCK, row, column))
        probability = sum(share for _, _, share in taken)
        if probability < LEAST_LETTER:
            continue
        classes_K, x, y = np.zeros(NUM_CLASSES, np.float32), 0.0, 0.0
        for taken_row, taken_column, share in taken:
            left_RC[taken_row + 1, taken_column + 1] -= share
            letters_K = probabilities_RCK[taken_row, taken_column].copy()
            letters_K[NO_LETTER] = 0
            classes_K += share / probability * letters_K / letters_K.sum()
            x, y = x + share * (taken_column + 0.5), y + share * (taken_row + 0.5)
        x, y = x * cell_width / probability, y * cell_height / probability
        letters.append(Letter(x=x, y=y, unit=unit, probability=min(probability, 1.0), classes_K=classes_K))
        if len(letters) == MOST_LETTERS:
            break
    return letters


def _taken(
    left_RC: NDArray[np.float32], probabilities_RCK: NDArray[np.float32], row: int, column: int
) -> Iterator[tuple[int, int, float]]:
    """Yield cells and how much of each belongs to the letter around a cell: together at most one.

    Of the neighbors, those with the same letter come first.
    """
    own = float(left_RC[row + 1, column + 1])
    if own <= 0:
        return
    yield row, column, own
    needed, letters_K = 1 - own, probabilities_RCK[row, column, 1:]
    near = [
        (float(letters_K @ probabilities_RCK[row + down, column + right, 1:]), row + down, column + right)
        for down, right in _NEIGHBORS
        if left_RC[row + down + 1, column + right + 1] > _LEAST_SHARE
    ]
    for _, near_row, near_column in sorted(near, reverse=True):
        share = min(needed, float(left_RC[near_row + 1, near_column + 1]))
        if share > 0:
            yield near_row, near_column, share
            needed -= share
