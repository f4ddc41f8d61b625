"""Rotations that spread outliers: random signs, then orthonormal Hadamard matrices on blocks of a power of two.

Rotating rows and columns makes the entries of a matrix nearly Gaussian (Chee et al., QuIP, 2023). Signs and Hadamard
matrices are their own inverses, so only the seed is stored.

Shapes: R rows, C columns, D a dimension of either.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[Any]  # fp32 of weights, fp64 of moments


def rotate(weight_RC: Floats, seed: int) -> Floats:
    """Return the matrix with rows and columns rotated; `unrotate` with the same seed inverts it."""
    return _transform(rotate_inputs(weight_RC, seed) * _signs(weight_RC.shape[0], seed, "rows")[:, None])


def unrotate(weight_RC: Floats, seed: int) -> Floats:
    """Return the matrix of a rotated one: the inverse of `rotate`."""
    num_rows, num_columns = weight_RC.shape
    columns_back_RC = _transform(weight_RC.T).T * _signs(num_columns, seed, "columns")
    return _transform(columns_back_RC) * _signs(num_rows, seed, "rows")[:, None]


def rotate_inputs(weight_RC: Floats, seed: int) -> Floats:
    """Return the matrix with columns rotated as in `rotate`; it applies to inputs rotated the same way."""
    return _transform((weight_RC * _signs(weight_RC.shape[1], seed, "columns")).T).T


def _signs(size: int, seed: int, side: str) -> NDArray[np.float32]:
    """Random signs [D], independent of library versions."""
    digest = hashlib.shake_256(f"{seed} {side} {size}".encode()).digest(-(-size // 8))
    bits = np.unpackbits(np.frombuffer(digest, np.uint8))[:size]
    return 1 - 2 * bits.astype(np.float32)


def _transform(values_DR: Floats) -> Floats:
    """Hadamard transform along the first dimension, in blocks of the largest power of two that divides it."""
    size, num_columns = values_DR.shape
    block = size & -size
    values_DR = np.array(values_DR, order="C")
    half = 1
    while half < block:
        pairs = values_DR.reshape(-1, 2, half, num_columns)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2
    return values_DR * np.float32(block**-0.5)
