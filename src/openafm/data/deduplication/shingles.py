"""Hashes of the shingles (n-grams) of a text: of words, or of characters in scripts without spaces between words.

Hashes depend on the text alone, not on the platform or the process.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.data.web.warc import MissingLibraryError

Hashes = npt.NDArray[np.uint64]

_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
# Thai and Lao, Myanmar, Khmer, kana, Han.
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_MIN_SPACELESS = 0.3


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text: words, or characters if `is_spaceless`."""

    words: list[str]
    is_spaceless: bool

    def hashes(self) -> Hashes:
        """Return the hash of each token."""
        if self.is_spaceless:
            return np.frombuffer("".join(self.words).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
        found: list[list[int]] = rensa().RMinHash.hash_token_sets([self.words])
        return np.array(found[0], np.uint64)


def tokens_of(text: str) -> Tokens:
    """Return the tokens of a text without its punctuation, case and forms of characters (NFKC).

    A text whose letters are to 30 % of a script without spaces has characters as tokens.
    """
    plain = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()
    words = _WORD.findall(plain)
    if plain.isascii():
        return Tokens(words, is_spaceless=False)
    letters = "".join(words)
    num_spaceless = len(letters) - len(_SPACELESS.sub("", letters))
    if num_spaceless < _MIN_SPACELESS * len(letters):
        return Tokens(words, is_spaceless=False)
    return Tokens(list(letters), is_spaceless=True)


def shingle_hashes(tokens: Hashes, size: int) -> Hashes:
    """Return the hash of each sequence of `size` tokens; of all tokens if there are fewer, and none of none."""
    size = min(size, len(tokens))
    if size == 0:
        return tokens
    count = len(tokens) - size + 1
    return combined(tokens[offset : offset + count] for offset in range(size))


def combined(parts: Iterable[Hashes]) -> Hashes:
    """Return one hash of the elements of all parts at each place; their order counts."""
    result: Any = np.uint64(1)
    for part in parts:
        result = (result ^ part) * _FACTOR
        result ^= result >> _SHIFT
    return np.asarray(result, np.uint64)


def rensa() -> Any:
    """Return the library.

    Raises:
        MissingLibraryError: it is not installed.
    """
    try:
        import rensa as library
    except ImportError as error:
        raise MissingLibraryError("MinHash needs rensa; install it with: pip install 'openafm[data]'") from error
    return library
