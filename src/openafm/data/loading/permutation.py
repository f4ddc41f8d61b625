"""A keyed permutation of 0..size-1 that is computed per index and never stored.

A balanced Feistel network permutes the smallest even number of bits that holds the size; it is applied again to values
outside of the range until they lie inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). It uses
integer arithmetic only, so the order is the same on every machine and numpy version.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import numpy.typing as npt

NUM_ROUNDS = 6
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03))


class Permutation:
    """A bijection of `range(size)` for each key. Calling it with an array permutes each index."""

    def __init__(self, size: int, *key: int | str) -> None:
        if not 0 < size <= 1 << 62:
            raise ValueError(f"a permutation needs a size from 1 to 2^62, got {size}")
        digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=8 * NUM_ROUNDS).digest()
        self.size = size
        self._round_keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
        self._half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))

    def __call__(self, indices: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the permuted indices, in the shape of `indices`.

        Raises:
            IndexError: an index lies outside 0..size-1.
        """
        positions = np.asarray(indices, dtype=np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= self.size):
            raise IndexError(f"indices must lie in 0..{self.size - 1}")
        values = self._feistel(positions.ravel().astype(np.uint64))
        while (outside := np.flatnonzero(values >= self.size)).size:
            values[outside] = self._feistel(values[outside])
        return values.astype(np.int64).reshape(positions.shape)

    def _feistel(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        half_mask = (np.uint64(1) << self._half_bits) - np.uint64(1)
        left, right = values >> self._half_bits, values & half_mask
        for round_key in self._round_keys:
            left, right = right, left ^ (_mix(right, round_key) & half_mask)
        return (left << self._half_bits) | right


def _mix(values: npt.NDArray[np.uint64], round_key: np.uint64) -> npt.NDArray[np.uint64]:
    mixed = (values ^ round_key) * _MULTIPLIERS[0]  # arrays of uint64 wrap around without a warning
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MULTIPLIERS[1]
    return mixed ^ (mixed >> np.uint64(29))
