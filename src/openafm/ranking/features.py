"""Features of a text: its words and their n-grams of characters, each hashed into a bucket of an embedding table.

Words of scripts without spaces, and Korean words, whose endings vary, are n-grams of one to three characters; other words
are themselves and n-grams of three to five characters between `<` and `>` (fastText, arXiv 1607.04606).
"""

from __future__ import annotations

import functools
import re
import zlib

MOST_WORDS = 400  # of a text; the rest is not read
_DENSE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # kana, Han, Hangul
_WORD = re.compile(f"[{_DENSE}]+|[^\\W_{_DENSE}]+|[!?%€$£]|[\U0001f300-\U0001faff]")
_NUM_DENSE, _NUM_OTHER = (1, 2, 3), (3, 4, 5)
_MOST_LETTERS = 40  # of a word; the rest is not read
_KNOWN_WORDS = 20_000


def words_of(text: str, num_buckets: int) -> list[tuple[int, ...]]:
    """Return the buckets of the features of each word of a text, at most `MOST_WORDS`."""
    found = (match.group() for match in _WORD.finditer(text.casefold()))
    return [_features(word[:_MOST_LETTERS], num_buckets) for word, _ in zip(found, range(MOST_WORDS), strict=False)]


@functools.lru_cache(maxsize=_KNOWN_WORDS)
def _features(word: str, num_buckets: int) -> tuple[int, ...]:
    if re.match(f"[{_DENSE}]", word):
        parts = [f"c{gram}" for gram in _grams(word, _NUM_DENSE)]
    else:
        bounded = f"<{word}>"
        parts = [f"w{word}", *(f"g{gram}" for gram in _grams(bounded, _NUM_OTHER) if gram != bounded)]
    return tuple(zlib.crc32(part.encode(errors="surrogatepass")) % num_buckets for part in parts)


def _grams(word: str, sizes: tuple[int, ...]) -> list[str]:
    return [word[at : at + size] for size in sizes for at in range(len(word) - size + 1)]
