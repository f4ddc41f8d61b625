"""Hashes of the shingles (n-grams) of a text: of words, or of characters in scripts without spaces between words.

Hashes depend on the text alone, not on the platform or the process. Words are hashed together in numpy: several times as
fast as one at a time.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.core.libraries import needed

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
_PERIOD = 256  # characters of a word after which the powers repeat
_LETTER, _SPACELESS = 1, 2
_SPACELESS_SCRIPTS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # kana
    (0x3400, 0x9FFF),  # Han
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)
_MIN_SPACELESS = 0.3
_ASSIGNED = ((0, 0x3FFFF), (0xE0000, 0xE0FFF))  # all letters, digits and marks; a pass over the rest takes 0.2 s


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text: words, or characters if `is_spaceless`.

    Token i begins at character `starts[i]` of the normalized text and has `lengths[i]` characters.
    """

    text: str
    starts: Numbers
    lengths: Numbers
    hashes: Hashes
    is_spaceless: bool

    def __len__(self) -> int:
        return len(self.hashes)

    def words(self, start: int = 0, count: int | None = None) -> list[str]:
        """Return tokens as text."""
        stop = len(self) if count is None else start + count
        spans = zip(self.starts[start:stop].tolist(), self.lengths[start:stop].tolist(), strict=True)
        return [self.text[place : place + length] for place, length in spans]


def tokens_of(text: str) -> Tokens:
    """Return the tokens of a text without its punctuation, case and forms of characters (NFKC).

    A text whose letters are to 30 % of a script without spaces has characters as tokens.
    """
    if text.isascii():
        text = text.lower()
        codes: npt.NDArray[Any] = np.frombuffer(text.encode("ascii"), np.uint8)
    else:
        text = unicodedata.normalize("NFKC", text).lower()
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    classes = _classes().take(codes)
    is_letter = classes != 0
    letters = codes[is_letter].astype(np.uint64)
    is_spaceless = bool(np.count_nonzero(classes == _SPACELESS) > _MIN_SPACELESS * len(letters))
    if is_spaceless:
        starts, lengths = np.flatnonzero(is_letter), np.ones(len(letters), np.int64)
    else:
        padded = np.zeros(len(codes) + 2, bool)
        padded[1:-1] = is_letter
        edges = np.flatnonzero(padded[1:] != padded[:-1])
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
    return Tokens(text, starts, lengths, _token_hashes(letters, lengths), is_spaceless)


def shingle_hashes(tokens: Hashes, size: int) -> Hashes:
    """Return the hash of each sequence of `size` tokens; of all tokens if there are fewer, and none of none."""
    size = min(size, len(tokens))
    if size == 0:
        return tokens
    count = len(tokens) - size + 1
    return combined(tokens[offset : offset + count] for offset in range(size))


def combined(parts: Iterable[Hashes]) -> Hashes:
    """Return one hash of the elements of at most 256 parts at each place; their order counts."""
    result: Any = np.uint64(0)
    for factor, part in zip(_powers(), parts, strict=False):
        result = result + part * factor
    result ^= result >> _SHIFT
    result *= _FACTOR
    result ^= result >> _SHIFT
    return np.asarray(result, np.uint64)


def rensa() -> Any:
    """Return the library.

    Raises:
        MissingLibraryError: it is not installed.
    """
    with needed("MinHash", "rensa", "data"):
        import rensa as library
    return library


def _token_hashes(letters: Hashes, lengths: Numbers) -> Hashes:
    """Return the hash of each token: a polynomial of its letters modulo 2^64, mixed with its length."""
    if not len(lengths):
        return np.empty(0, np.uint64)
    firsts = np.cumsum(lengths) - lengths
    places = np.arange(len(letters)) - np.repeat(firsts, lengths)
    sums = np.add.reduceat(letters * _powers().take(places & (_PERIOD - 1)), firsts)
    return combined((sums, lengths.astype(np.uint64)))


@cache
def _powers() -> Hashes:
    return np.cumprod(np.full(_PERIOD, _FACTOR, np.uint64), dtype=np.uint64)


@cache
def _classes() -> npt.NDArray[np.uint8]:
    """Return the class of each code point: letters, digits and marks; those of scripts without spaces; others."""
    classes = np.zeros(0x110000, np.uint8)
    for first, last in _ASSIGNED:
        categories = "".join(map(unicodedata.category, map(chr, range(first, last + 1)))).encode()
        initials = np.frombuffer(categories, np.uint8)[::2]
        classes[first : last + 1] = np.isin(initials, np.frombuffer(b"LNM", np.uint8)) * _LETTER
    classes[ord("_")] = _LETTER
    for first, last in _SPACELESS_SCRIPTS:
        classes[first : last + 1] *= _SPACELESS
    return classes
