"""Blocks chosen for the layer's outputs, not for its weights: GPTQ (Frantar et al., 2022) over strips of six columns.

The error that a column's levels leave is made up for in the columns that follow, as far as their inputs are correlated
with its own. The ends of a strip's blocks are fitted to the strip as it has become by then; its levels are chosen column by
column.

Shapes: R rows, C columns (both multiples of 6), T texels of a block (36), N blocks of a strip (R / 6).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import BLOCK_BITS, BLOCK_SIZE
from openafm.compression.astc.config import AstcConfig
from openafm.compression.astc.encoder import Fit, fit_blocks
from openafm.compression.astc.level_search import Floats


def encode_calibrated(x_RC: Floats, inputs_CC: NDArray[np.float64], config: AstcConfig) -> NDArray[np.uint8]:
    """Blocks [R / 6, C / 6, 16] for weights 0..1 whose inputs have the second moments `inputs_CC`, the sum of x x^T."""
    num_rows, num_columns = x_RC.shape
    blocks = np.empty((num_rows // BLOCK_SIZE, num_columns // BLOCK_SIZE, BLOCK_BITS // 8), np.uint8)
    pull_CC = _pull(inputs_CC, config.damping)
    rest_RC = x_RC.astype(np.float64)
    for first in range(0, num_columns, BLOCK_SIZE):
        last = first + BLOCK_SIZE
        strip_R6, error_R6 = rest_RC[:, first:last], np.empty((num_rows, BLOCK_SIZE))
        fits = fit_blocks(_texels(strip_R6), config)
        levels = [np.empty((BLOCK_SIZE * BLOCK_SIZE, len(fit.index_N)), np.uint8) for fit in fits]
        for column in range(BLOCK_SIZE):
            pull_6 = pull_CC[first + column, first:last]
            coded_R = _encode_column(strip_R6[:, column], column, fits, levels)
            error_R6[:, column] = (strip_R6[:, column] - coded_R) / pull_6[column]
            strip_R6[:, column + 1 :] -= error_R6[:, column, None] * pull_6[column + 1 :]
        rest_RC[:, last:] -= error_R6 @ pull_CC[first:last, last:]
        for fit, level_TN in zip(fits, levels, strict=True):
            blocks[fit.index_N, first // BLOCK_SIZE] = fit.write(level_TN)
    return blocks


def _pull(inputs_CC: NDArray[np.float64], damping: float) -> NDArray[np.float64]:
    """The upper Cholesky factor of the inverse moments: how a column's error moves the columns after it."""
    diagonal = np.diag_indices_from(inputs_CC)
    damped_CC = inputs_CC.copy()
    # An expert that saw no inputs has no moments: its columns then count alike.
    damped_CC[diagonal] += damping * inputs_CC[diagonal].mean() or 1.0
    return np.linalg.cholesky(np.linalg.inv(damped_CC)).T


def _encode_column(column_R: NDArray[np.float64], column: int, fits: list[Fit], levels: list[NDArray[np.uint8]]) -> Floats:
    """Set the levels of one column of a strip and return what they decode to."""
    texels = slice(column, None, BLOCK_SIZE)
    x_6N = column_R.astype(np.float32).reshape(-1, BLOCK_SIZE).T
    coded_6N = np.empty_like(x_6N)
    for fit, level_TN in zip(fits, levels, strict=True):
        level_TN[texels] = fit.nearest_levels(x_6N[:, fit.index_N], texels)
        coded_6N[:, fit.index_N] = fit.values(level_TN[texels], texels)
    return coded_6N.T.reshape(-1)


def _texels(strip_R6: NDArray[np.float64]) -> Floats:
    return np.ascontiguousarray(strip_R6.reshape(-1, BLOCK_SIZE * BLOCK_SIZE).T, np.float32)
