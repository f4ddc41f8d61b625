"""Features from classes of words: which meanings occur in a text, which occur together, and which are close.

`patterns/LOCALE.toml` lists word stems by class, such as `hurt`, `person` or `software`. Class names are the same in all
languages, so a pair of classes that is learned in one language holds in the others. Computed without torch.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.safety.classifier.corpus import LOCALES, corpus_data
from openafm.safety.words import normalize

_WORD = re.compile(r"[^\W_]+")
_NEAR = 4  # words
_SHORTEST_STEM, _LONGEST_ENDING = 4, 6  # letters; shorter stems are whole words, or words with an ending of two letters
_TEXT_PARTS = ("acts", "harmless", "prompts", "harmless_prompts", "slots")
Classes = tuple[str, ...]


class WordClassFeatures:
    """Compute features of texts from classes of words: classes, their pairs, and pairs within four words; length 1."""

    is_dense = False

    def __init__(self) -> None:
        names = sorted({name for locale in LOCALES for name in corpus_data(locale)["classes"]})
        pairs = list(combinations(names, 2))
        keys = [*names, *pairs, *((pair, "near") for pair in pairs)]
        self._columns = {key: column for column, key in enumerate(keys)}
        self.num_features = len(keys)
        stems = {locale: corpus_data(locale)["classes"] for locale in LOCALES}
        self.signature = hashlib.sha256(json.dumps(stems, sort_keys=True).encode()).hexdigest()[:40]

    def __call__(self, texts: Sequence[str], side: str) -> npt.NDArray[np.float32]:
        features_NF = np.zeros((len(texts), self.num_features), np.float32)
        for row_F, text in zip(features_NF, texts, strict=True):
            columns = self._columns_of(text)
            if columns:
                row_F[columns] = len(columns) ** -0.5
        return features_NF

    def _columns_of(self, text: str) -> list[int]:
        by_word = classes_of_words(text)
        keys: set[Any] = {name for names in by_word for name in names}
        keys |= set(combinations(sorted(keys), 2))
        places = [(place, name) for place, names in enumerate(by_word) for name in names]
        for index, (place, name) in enumerate(places):
            for other_place, other in places[index + 1 :]:
                if other_place > place + _NEAR:
                    break
                if other_place > place and other != name:
                    keys.add(((min(name, other), max(name, other)), "near"))
        return [self._columns[key] for key in keys]


def classes_of_words(text: str) -> list[Classes]:
    """Return the classes of each word of a text, in the language whose corpus has most of its words."""
    words = _words(text)
    locale = language_of(words)
    return [_classes(word, locale) for word in words]


def language_of(words: Sequence[str]) -> str:
    """Return the language whose corpus has most of these words; English of several."""
    counts = {locale: sum(word in _vocabulary(locale) for word in words) for locale in LOCALES}
    return max(LOCALES, key=lambda locale: (counts[locale], locale == "en"))


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case, without disguises and diacritics."""
    decomposed = unicodedata.normalize("NFD", normalize(text))
    return _WORD.findall("".join(each for each in decomposed if not unicodedata.combining(each)))


@lru_cache(maxsize=len(LOCALES))
def _vocabulary(locale: str) -> frozenset[str]:
    data = corpus_data(locale)
    texts = [*data["frames"], *data["responses"], *(text for part in _TEXT_PARTS for text in data[part].values())]
    return frozenset(_words(" ".join(texts)))


@lru_cache(maxsize=len(LOCALES))
def _stems(locale: str) -> Mapping[str, Classes]:
    found: dict[str, set[str]] = {}
    for name, stems in corpus_data(locale)["classes"].items():
        for stem in _words(stems):
            found.setdefault(stem, set()).add(name)
    return {stem: tuple(sorted(names)) for stem, names in found.items()}


@lru_cache(maxsize=1 << 14)
def _classes(word: str, locale: str) -> Classes:
    """Return the classes of the longest stem that the word begins with."""
    stems = _stems(locale)
    for length in range(len(word), 1, -1):
        ending = len(word) - length
        longest = _LONGEST_ENDING if length >= _SHORTEST_STEM else 2 if length == _SHORTEST_STEM - 1 else 0
        if ending <= longest and word[:length] in stems:
            return stems[word[:length]]
    return ()
