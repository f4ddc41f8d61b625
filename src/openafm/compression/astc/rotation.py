"""Rotations that spread outliers: random signs, then orthonormal Hadamard matrices on blocks of a power of two.

Rotating rows and columns makes the entries of any matrix nearly Gaussian (Chee et al., QuIP, 2023). Both are their own
inverses up to order, so a seed is all that has to be stored.

Shapes: R rows, C columns, D a dimension of either.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[Any]  # fp32 of weights, fp64 of moments


def rotate(weight_RC: Floats, seed: int) -> Floats:
    """Rows and columns rotated; `unrotate` with the same seed gives the matrix back."""
    columns_rotated_RC = rotate_inputs(weight_RC, seed)
    return _transform(columns_rotated_RC.T * _signs(weight_RC.shape[0], seed, "rows")).T


def unrotate(weight_RC: Floats, seed: int) -> Floats:
    """The inverse of `rotate`."""
    rows_back_CR = _transform(weight_RC.T) * _signs(weight_RC.shape[0], seed, "rows")
    return _transform(rows_back_CR.T) * _signs(weight_RC.shape[1], seed, "columns")


def rotate_inputs(weight_RC: Floats, seed: int) -> Floats:
    """The columns rotated, as `rotate` does it: what multiplies inputs that are rotated in the same way."""
    return _transform(weight_RC * _signs(weight_RC.shape[1], seed, "columns"))


def _signs(size: int, seed: int, side: str) -> NDArray[np.float32]:
    """Signs [D] that do not depend on the version of any library."""
    digest = hashlib.shake_256(f"{seed} {side} {size}".encode()).digest(-(-size // 8))
    bits = np.unpackbits(np.frombuffer(digest, np.uint8))[:size]
    return 1 - 2 * bits.astype(np.float32)


def _transform(values_RD: Floats) -> Floats:
    """Hadamard transforms along the last dimension, in blocks of the largest power of two that divides it."""
    num_rows, size = values_RD.shape
    block = size & -size
    half = 1
    while half < block:
        pairs = values_RD.reshape(num_rows, -1, 2, half)
        values_RD = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).reshape(num_rows, size)
        half *= 2
    return values_RD * np.float32(block**-0.5)
