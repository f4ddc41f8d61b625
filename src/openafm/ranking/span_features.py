"""Features of places in a text and of fields, hashed into buckets, for values that are spans of the text.

The first and the last word of a span are scored with the words around them, the words inside by themselves.
"""

from __future__ import annotations

import functools
import itertools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

MOST_WORDS = 160
"""Of a text that is searched."""
_DENSE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # kana, Han, Hangul: each character is a word
_WORD = re.compile(f"[{_DENSE}]|\\d+|[^\\W\\d_{_DENSE}]+|[^\\w\\s]|_")
_GRAMS = (3, 4)
_BEFORE, _AFTER = range(-3, 2), range(-1, 4)  # words around the first and the last one of a span
_BORDERS = ("^", "$")
_MOST_LETTERS = 40  # of a word whose n-grams are features
_MOST_NAME_WORDS, _KNOWN_FIELDS = 48, 500  # of a field with its description


@dataclass(frozen=True)
class Word:
    """A word, number or sign of a text, with its place."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Places:
    """The words of a text, and for each the features of a span that starts there, of one that ends there, and inside."""

    words: tuple[Word, ...]
    starts: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]
    insides: tuple[tuple[int, ...], ...]


def words_of(text: str) -> tuple[Word, ...]:
    """Return the words of a text; of one that is too long to be searched, one more than are searched."""
    found = itertools.islice(_WORD.finditer(text), MOST_WORDS + 1)
    return tuple(Word(match.group(), match.start(), match.end()) for match in found)


def places_of(words: Sequence[Word], num_buckets: int) -> Places:
    """Return the features of all words."""
    lower, shapes = [word.text.casefold() for word in words], [_shape(word.text) for word in words]

    def at(values: list[str], place: int) -> str:
        return values[place] if 0 <= place < len(values) else _BORDERS[place >= len(values)]

    def around(kind: str, place: int, offsets: range, pair: tuple[int, int]) -> list[str]:
        near = [f"{kind}{offset}{at(lower, place + offset)}" for offset in offsets]
        forms = [f"{kind}shape{offset}{at(shapes, place + offset)}" for offset in (-1, 0, 1)]
        both = f"{kind}pair{at(lower, place + pair[0])} {at(lower, place + pair[1])}"
        return [*near, *forms, both, *(f"{kind}gram{gram}" for gram in _grams(lower[place]))]

    def hashed(parts: Sequence[str]) -> tuple[int, ...]:
        return tuple(zlib.crc32(part.encode(errors="surrogatepass")) % num_buckets for part in parts)

    places = range(len(words))
    return Places(
        words=tuple(words),
        starts=tuple(hashed(around("s", place, _BEFORE, (-2, -1))) for place in places),
        ends=tuple(hashed(around("e", place, _AFTER, (1, 2))) for place in places),
        insides=tuple(
            hashed([f"i{lower[place]}", f"ishape{shapes[place]}", *(f"igram{gram}" for gram in _grams(lower[place]))])
            for place in places
        ),
    )


@functools.lru_cache(_KNOWN_FIELDS)
def field_features(name: str, context: str, num_buckets: int) -> tuple[int, ...]:
    """Return the features of a field: its name, with its description, and what it is a field of."""
    parts = [
        part
        for kind, text in (("f", name), ("c", context))
        for word in name_words(text)[:_MOST_NAME_WORDS]
        for part in (f"{kind}{word}", *(f"{kind}gram{gram}" for gram in _grams(word)))
    ]
    return tuple(zlib.crc32(part.encode(errors="surrogatepass")) % num_buckets for part in parts) or (0,)


def name_words(name: str) -> list[str]:
    """Return the words of a name such as `eventName` or `event_name`."""
    return re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).casefold())


def _grams(word: str) -> list[str]:
    bounded = f"<{word[:_MOST_LETTERS]}>"
    return [bounded[at : at + size] for size in _GRAMS for at in range(len(bounded) - size + 1)]


def _shape(word: str) -> str:
    if word.isdigit():
        return f"{min(len(word), 5)} digits"
    if not word[0].isalnum():
        return word
    if word.isupper():
        return "capitals" if len(word) > 1 else "capital"
    return "Word" if word[0].isupper() else "word"
