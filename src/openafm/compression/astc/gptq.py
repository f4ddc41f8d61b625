"""GPTQ (Frantar et al., 2022) over strips of six columns: blocks that minimize the error of the layer's outputs.

Later columns compensate the error of each column, as far as their inputs are correlated. The end points of a strip's blocks
are fitted to the compensated strip, then levels are chosen column by column. Refinement passes encode each strip again with
all others fixed, and keep each block that reduces the error.

Shapes: R rows, C columns (both multiples of 6), T texels of a block (36), N blocks of a strip (R / 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.compression.astc.block_layout import BLOCK_BITS, BLOCK_SIZE, NUM_TEXELS
from openafm.compression.astc.config import AstcConfig
from openafm.compression.astc.encoder import fit_blocks
from openafm.compression.astc.level_search import Floats

Doubles: TypeAlias = NDArray[np.float64]


def encode_calibrated(x_RC: Floats, inputs_CC: Doubles, config: AstcConfig) -> NDArray[np.uint8]:
    """Return blocks [R / 6, C / 6, 16] of weights 0..1 whose inputs have the second moment `inputs_CC`, sum x x^T."""
    num_rows, num_columns = x_RC.shape
    blocks = np.empty((num_rows // BLOCK_SIZE, num_columns // BLOCK_SIZE, BLOCK_BITS // 8), np.uint8)
    moments_CC = _damped(inputs_CC, config.damping)
    pull_CC = _pull(moments_CC)
    rest_RC, left_RC = x_RC.astype(np.float64), np.empty((num_rows, num_columns))
    for index, strip in _strips(num_columns):
        coded = _encode_strip(rest_RC[:, strip], pull_CC[strip, strip], config)
        rest_RC[:, strip.stop :] -= coded.error_R6 @ pull_CC[strip, strip.stop :]
        blocks[:, index], left_RC[:, strip] = coded.blocks, coded.values_R6 - x_RC[:, strip]
    for _ in range(config.refinements):
        _refine(blocks, left_RC, x_RC, moments_CC, config)
    return blocks


def _refine(blocks: NDArray[np.uint8], left_RC: Doubles, x_RC: Floats, moments_CC: Doubles, config: AstcConfig) -> None:
    """Encode each strip again for the errors of the others; updates `blocks` and the errors `left_RC` in place."""
    gradient_RC = left_RC @ moments_CC
    for index, strip in _strips(x_RC.shape[1]):
        own_66, left_R6 = moments_CC[strip, strip], left_RC[:, strip]
        wanted_R6 = left_R6 - gradient_RC[:, strip] @ np.linalg.inv(own_66)  # the error that compensates the others
        coded = _encode_strip(x_RC[:, strip] + wanted_R6, _pull(own_66), config)
        new_R6 = coded.values_R6 - x_RC[:, strip]
        is_better_N = _costs(new_R6 - wanted_R6, own_66) < _costs(left_R6 - wanted_R6, own_66)
        change_R6 = (new_R6 - left_R6) * np.repeat(is_better_N, BLOCK_SIZE)[:, None]
        left_R6 += change_R6
        gradient_RC += change_R6 @ moments_CC[strip]
        blocks[is_better_N, index] = coded.blocks[is_better_N]


def _costs(error_R6: Doubles, moments_66: Doubles) -> Doubles:
    """The squared error of the outputs of each block's rows: [N]."""
    return ((error_R6 @ moments_66) * error_R6).reshape(-1, NUM_TEXELS).sum(1)


@dataclass(frozen=True)
class _Strip:
    """Blocks [N, 16], their decoded values, and the errors to compensate with `_pull`."""

    blocks: NDArray[np.uint8]
    values_R6: Doubles
    error_R6: Doubles


def _encode_strip(strip_R6: Doubles, pull_66: Doubles, config: AstcConfig) -> _Strip:
    rest_R6, values_R6, error_R6 = strip_R6.copy(), np.empty_like(strip_R6), np.empty_like(strip_R6)
    fits = fit_blocks(np.ascontiguousarray(strip_R6.reshape(-1, NUM_TEXELS).T, np.float32), config)
    levels = [np.empty((NUM_TEXELS, len(fit.index_N)), np.uint8) for fit in fits]
    for column in range(BLOCK_SIZE):
        texels = slice(column, None, BLOCK_SIZE)
        x_N6 = rest_R6[:, column].astype(np.float32).reshape(-1, BLOCK_SIZE)
        value_N6 = np.empty_like(x_N6)
        for fit, level_TN in zip(fits, levels, strict=True):
            level_TN[texels] = fit.nearest_levels(x_N6[fit.index_N].T, texels)
            value_N6[fit.index_N] = fit.values(level_TN[texels], texels).T
        values_R6[:, column] = value_N6.reshape(-1)
        error_R6[:, column] = (rest_R6[:, column] - values_R6[:, column]) / pull_66[column, column]
        rest_R6[:, column + 1 :] -= error_R6[:, column, None] * pull_66[column, column + 1 :]
    blocks = np.empty((len(strip_R6) // BLOCK_SIZE, BLOCK_BITS // 8), np.uint8)
    for fit, level_TN in zip(fits, levels, strict=True):
        blocks[fit.index_N] = fit.write(level_TN)
    return _Strip(blocks, values_R6, error_R6)


def _damped(inputs_CC: Doubles, damping: float) -> Doubles:
    diagonal = np.diag_indices_from(inputs_CC)
    damped_CC = inputs_CC.copy()
    # An expert without inputs has zero moments; its columns are weighted equally.
    damped_CC[diagonal] += damping * inputs_CC[diagonal].mean() or 1.0
    return damped_CC


def _pull(moments_CC: Doubles) -> Doubles:
    """The upper Cholesky factor of the inverse moments: the effect of a column's error on later columns."""
    return np.linalg.cholesky(np.linalg.inv(moments_CC)).T


def _strips(num_columns: int) -> Iterator[tuple[int, slice]]:
    for index in range(num_columns // BLOCK_SIZE):
        yield index, slice(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)
