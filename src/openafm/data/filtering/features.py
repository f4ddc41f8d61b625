"""Hashed n-grams of a text, computed by array operations: words, pairs of words, and groups of characters.

A hash is a polynomial over code points modulo 2^64. Prefix sums give the hash of every word or group of characters at once,
without a loop over them in Python, so a document of 5,000 characters takes about half a millisecond.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.core.config import Config

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that its powers have inverses modulo 2^64
_INVERSE = pow(_BASE, -1, 1 << 64)
_MIX = 0xFF51AFD7ED558CCD
_PAIR = 0xC4CEB9FE1A85EC53
_NUM_CODES = 0x20000  # code points above are classified as letters
_DIGIT = ord("0")

_SPACE, _MARK, _LETTER, _SINGLE = range(4)
# Scripts without spaces: every character is a word.
_SINGLE_RANGES = ((0x3040, 0x3100), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00))


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig(Config):
    """Which n-grams of a text are hashed into a table of 2^`bits` rows.

    Words are in lower case, digits count as 0. A mark of punctuation is a word, as is every character of Chinese and
    Japanese. `word_orders` and `character_orders` are the lengths of n-grams, 1 or 2 for words.
    """

    bits: int = 18
    word_orders: tuple[int, ...] = (1, 2)
    character_orders: tuple[int, ...] = ()
    max_characters: int = 20_000

    def __post_init__(self) -> None:
        self.require(8 <= self.bits <= 26, f"bits {self.bits} is not in 8 to 26")
        self.require(bool(self.word_orders or self.character_orders), "no n-grams; set word_orders or character_orders")
        self.require(set(self.word_orders) <= {1, 2}, f"word_orders {self.word_orders}: expected 1, 2 or both")
        self.require(all(1 <= order <= 8 for order in self.character_orders), "character_orders are from 1 to 8")
        self.require(self.max_characters >= 100, f"max_characters {self.max_characters} is below 100")


def features_of(text: str, config: FeaturesConfig) -> NDArray[np.int64]:
    """Return the rows of all n-grams of a text, in order, with repetition."""
    import numpy as np

    data = text[: config.max_characters].lower().encode("utf-32-le", "replace")
    codes = np.frombuffer(data, dtype=np.uint32).astype(np.int64)
    kinds = _kinds_of_codes()[np.minimum(codes, _NUM_CODES - 1)]
    is_digit = _is_digit()[np.minimum(codes, _NUM_CODES - 1)]
    plain: NDArray[np.uint64] = np.where(is_digit, _DIGIT, codes).astype(np.uint64)
    hashes = []
    if config.word_orders:
        words = _words(plain, kinds)
        hashes += [words] if 1 in config.word_orders else []
        hashes += [words[:-1] * np.uint64(_PAIR) + words[1:]] if 2 in config.word_orders else []
    spaced: NDArray[np.uint64] = np.where(kinds == _SPACE, np.uint64(32), plain)
    hashes += [_groups(spaced, order) for order in config.character_orders]
    mixed = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(_MIX)
    return (mixed >> np.uint64(64 - config.bits)).astype(np.int64)


def _words(codes: NDArray[np.uint64], kinds: NDArray[np.int8]) -> NDArray[np.uint64]:
    """Return the hash of each word: the polynomial of its code points, shifted to exponent 0."""
    import numpy as np

    if not len(codes):
        return np.zeros(0, np.uint64)
    before = np.concatenate(([_SPACE], kinds[:-1]))
    is_start = (kinds != _SPACE) & ~((kinds == _LETTER) & (before == _LETTER))
    starts = np.flatnonzero(is_start)
    after = np.concatenate((kinds[1:], [_SPACE]))
    ends = np.flatnonzero((kinds != _SPACE) & ~((kinds == _LETTER) & (after == _LETTER))) + 1
    powers, inverses = _powers(len(codes))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(codes * powers, dtype=np.uint64)))
    result: NDArray[np.uint64] = (sums[ends] - sums[starts]) * inverses[starts]
    return result


def _groups(codes: NDArray[np.uint64], order: int) -> NDArray[np.uint64]:
    """Return the hash of each group of `order` characters in a row."""
    import numpy as np

    count = max(0, len(codes) - order + 1)
    hashes = np.full(count, order, np.uint64)
    for place in range(order):
        hashes = hashes * np.uint64(_BASE) + codes[place : place + count]
    return hashes


@functools.cache
def _all_powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    import numpy as np

    powers = np.full(count, np.uint64(_BASE))
    inverses = np.full(count, np.uint64(_INVERSE))
    powers[0] = inverses[0] = 1
    return np.cumprod(powers, dtype=np.uint64), np.cumprod(inverses, dtype=np.uint64)


def _powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    powers, inverses = _all_powers(1 << max(15, (count - 1).bit_length()))
    return powers[:count], inverses[:count]


@functools.cache
def _kinds_of_codes() -> NDArray[np.int8]:
    """Return the kind of each code point: white space, punctuation, part of a word, or a word of its own."""
    import numpy as np

    kinds = np.full(_NUM_CODES, _MARK, np.int8)
    for code in range(_NUM_CODES):
        character = chr(code)
        if character.isalnum():
            kinds[code] = _LETTER
        elif character.isspace() or not character.isprintable():
            kinds[code] = _SPACE
    for first, end in _SINGLE_RANGES:
        kinds[first:end] = _SINGLE
    return kinds


@functools.cache
def _is_digit() -> NDArray[np.bool_]:
    import numpy as np

    return np.fromiter((chr(code).isdigit() for code in range(_NUM_CODES)), np.bool_, _NUM_CODES)
