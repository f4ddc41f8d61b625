"""Texts with planted near-duplicates of known Jaccard similarity."""

from __future__ import annotations

import random

from openafm.data.deduplication.shingles import shingle_hashes, tokens_of


def words(random_words: random.Random, count: int) -> list[str]:
    """Return words that occur as often as those of a language: few of them are frequent."""
    return [f"w{int(random_words.paretovariate(0.6)) % 5000}" for _ in range(count)]


def pair(generator: random.Random, num_words: int, share: float, is_chinese: bool = False) -> tuple[str, str]:
    """Return a text and a copy in which `share` of the tokens is replaced, each at a random place."""
    first = [chr(0x4E00 + generator.randrange(800)) for _ in range(num_words)] if is_chinese else words(generator, num_words)
    second = list(first)
    for _ in range(round(share * num_words)):
        place = generator.randrange(num_words)
        second[place] = chr(0x4E00 + generator.randrange(800, 1600)) if is_chinese else f"x{generator.randrange(10**6)}"
    separator = "" if is_chinese else " "
    return separator.join(first), separator.join(second)


def jaccard(first: str, second: str, words_size: int = 5, characters_size: int = 8) -> float:
    """Return the exact Jaccard similarity of the sets of shingles."""
    sets = []
    for text in (first, second):
        tokens = tokens_of(text)
        sets.append(set(shingle_hashes(tokens.hashes, characters_size if tokens.is_spaceless else words_size).tolist()))
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])
