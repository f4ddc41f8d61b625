"""Integer sequence encoding: ASTC's bit stream of small numbers with ranges 2^n, 3 * 2^n or 5 * 2^n.

Khronos Data Format Specification 1.4, "Integer Sequence Encoding". Five trits share eight bits and three quints share seven,
interleaved with the low bits of each number, so that a stream may end after any number.

Shapes: N sequences, K numbers, B bits (one bit a byte, first bit first), G groups, P bits shared by a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class IntegerRange:
    """Numbers 0 .. base * 2^bits - 1; base is 1, 3 (trits) or 5 (quints)."""

    base: int
    bits: int

    @property
    def num_levels(self) -> int:
        return self.base << self.bits

    def num_bits(self, num_values: int) -> int:
        """Return the bits of a sequence of `num_values`."""
        shared = {1: 0, 3: -(-8 * num_values // 5), 5: -(-7 * num_values // 3)}[self.base]
        return shared + num_values * self.bits


def unpack(stream_NB: Bits, values: IntegerRange, num_values: int) -> NDArray[np.uint8]:
    """Return the numbers [N, K] of streams; further bits are ignored."""
    low_KB, shared_GP = _positions(values, num_values)
    num_bits = values.num_bits(num_values)
    padded_NB = np.zeros((len(stream_NB), max(low_KB.max(initial=0), shared_GP.max(initial=0)) + 1), np.uint8)
    padded_NB[:, :num_bits] = stream_NB[:, :num_bits]
    low_NK = _number(padded_NB, low_KB)
    digits = digit_table(values.base)[_number(padded_NB, shared_GP)]
    digits_NK = digits.reshape(len(stream_NB), -1)[:, : len(low_KB)]
    return (digits_NK << np.uint8(values.bits) | low_NK)[:, :num_values]


def pack(values_NK: NDArray[np.uint8], values: IntegerRange) -> Bits:
    """Return the bits [N, B] of sequences of numbers below `values.num_levels`."""
    num_sequences, num_values = values_NK.shape
    low_KB, shared_GP = _positions(values, num_values)
    group = len(low_KB) // len(shared_GP)
    padded_NK = np.zeros((num_sequences, len(low_KB)), np.uint8)
    padded_NK[:, :num_values] = values_NK
    digits_NGK = (padded_NK >> values.bits).reshape(num_sequences, len(shared_GP), group)
    shared_NG = _shared_table(values.base)[tuple(np.moveaxis(digits_NGK, 2, 0))]
    stream_NB = np.zeros((num_sequences, max(low_KB.max(initial=0), shared_GP.max(initial=0)) + 1), np.uint8)
    for numbers, positions in ((padded_NK, low_KB), (shared_NG, shared_GP)):
        for bit, where in enumerate(positions.T):
            stream_NB[:, where] = numbers >> bit & 1
    return stream_NB[:, : values.num_bits(num_values)]


def _number(bits_NB: Bits, positions_KB: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Numbers [N, K] from their bits, lowest first."""
    result_NK = np.zeros((len(bits_NB), len(positions_KB)), np.uint8)
    for bit, where in enumerate(positions_KB.T):
        result_NK |= bits_NB[:, where] << bit
    return result_NK


@lru_cache
def _positions(values: IntegerRange, num_values: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the low bits of each number and of the shared bits of each complete group: [K, bits], [G, P]."""
    shared_after = {1: (0,), 3: (2, 2, 1, 2, 1), 5: (3, 2, 2)}[values.base]
    low, shared, position = [], [], 0
    for _ in range(-(-num_values // len(shared_after))):
        shared_of_group: list[int] = []
        for num_shared in shared_after:
            low.append(list(range(position, position + values.bits)))
            position += values.bits
            shared_of_group += range(position, position + num_shared)
            position += num_shared
        shared.append(shared_of_group)
    return np.array(low, np.int64).reshape(len(low), values.bits), np.array(shared, np.int64).reshape(len(shared), -1)


@lru_cache
def digit_table(base: int) -> NDArray[np.uint8]:
    """Return the digits [2^P, group] of the shared bits of a group."""
    if base == 1:
        return np.zeros((1, 1), np.uint8)
    digits, num_codes = (_trits, 256) if base == 3 else (_quints, 128)
    return np.array([digits(code) for code in range(num_codes)], np.uint8)


@lru_cache
def _shared_table(base: int) -> NDArray[np.uint8]:
    """The smallest shared bits for each combination of digits, so that a stream that ends early ends in zeros."""
    digits = digit_table(base)
    codes = np.zeros((base,) * digits.shape[1], np.uint8)
    for code in reversed(range(len(digits))):
        codes[tuple(digits[code])] = code
    return codes


def _field(number: int, high: int, low: int) -> int:
    return number >> low & (1 << high - low + 1) - 1


def _trits(code: int) -> tuple[int, ...]:
    if _field(code, 4, 2) == 7:
        rest, t3, t4 = _field(code, 7, 5) << 2 | _field(code, 1, 0), 2, 2
    elif _field(code, 6, 5) == 3:
        rest, t3, t4 = _field(code, 4, 0), _field(code, 7, 7), 2
    else:
        rest, t3, t4 = _field(code, 4, 0), _field(code, 6, 5), _field(code, 7, 7)
    if _field(rest, 1, 0) == 3:
        high = _field(rest, 3, 3)
        return high << 1 | _field(rest, 2, 2) & ~high, _field(rest, 4, 4), 2, t3, t4
    if _field(rest, 3, 2) == 3:
        return _field(rest, 1, 0), 2, 2, t3, t4
    high = _field(rest, 1, 1)
    return high << 1 | _field(rest, 0, 0) & ~high, _field(rest, 3, 2), _field(rest, 4, 4), t3, t4


def _quints(code: int) -> tuple[int, ...]:
    lowest = code & 1
    if _field(code, 2, 1) == 3 and _field(code, 6, 5) == 0:
        return 4, 4, lowest << 2 | (_field(code, 4, 4) & ~lowest) << 1 | _field(code, 3, 3) & ~lowest
    if _field(code, 2, 1) == 3:
        rest, q2 = _field(code, 4, 3) << 3 | (_field(code, 6, 5) ^ 3) << 1 | lowest, 4
    else:
        rest, q2 = _field(code, 4, 0), _field(code, 6, 5)
    if _field(rest, 2, 0) == 5:
        return _field(rest, 4, 3), 4, q2
    return _field(rest, 2, 0), _field(rest, 4, 3), q2
