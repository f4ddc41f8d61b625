"""Image-text alignment: how well a text describes its image, by a scorer; pairs below a score are dropped.

`AlignmentScorer` is the interface for CLIP-like models: a config class below `AlignmentScorerConfig` in a plugin is enough.
`TextOverlapConfig` needs no model and does not look at the image; it is a stand-in, and its name is stored with each score.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from openafm.core.config import Config
from openafm.data.pairs.filters import Pair, PairFilter, PairFilterConfig
from openafm.data.web.documents import Dropped

SCORE_KEY = "alignment.score"
SCORER_KEY = "alignment.scorer"

_WORD = re.compile(r"[^\W_]+")
_SPACELESS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_MIN_LETTERS = 3


class AlignmentScorer(ABC):
    """Scores how well texts describe images."""

    @abstractmethod
    def score(self, pair: Pair) -> float:
        """Return a score; larger is better. Equal pairs have equal scores on every machine, or results are not equal."""


@dataclass(frozen=True, kw_only=True)
class AlignmentScorerConfig(Config, ABC):
    """Base of the scorers. `VERSION` is part of the key of cached results."""

    VERSION: ClassVar[int] = 1

    @abstractmethod
    def build(self) -> AlignmentScorer:
        """Return the scorer."""

    def input_digests(self) -> tuple[str, ...]:
        """Return the digests of the files that the scorer reads, such as weights."""
        return ()


@dataclass(frozen=True, kw_only=True)
class TextOverlapConfig(AlignmentScorerConfig):
    """A stand-in for a CLIP-like scorer that does not look at the image.

    The score is the share of the alt text's words that occur in the caption, the file name, the title of the page or the
    text near the image, from 0 to 1. It finds alt texts of another subject than their page (slogans, site names) and
    misses those that describe a wrong image of the right page; a good description in words of its own scores low.
    Chinese and Japanese count pairs of characters as words.
    """

    def build(self) -> AlignmentScorer:
        return TextOverlapScorer()


class TextOverlapScorer(AlignmentScorer):
    """See `TextOverlapConfig`."""

    def score(self, pair: Pair) -> float:
        wanted = tokens_of(pair.text)
        if not wanted:
            return 0.0
        name = unquote(urlsplit(pair.image_url).path.rpartition("/")[2]).partition(".")[0]
        found = tokens_of(f"{pair.caption}\n{pair.title}\n{name}\n{pair.nearby}")
        return len(wanted & found) / len(wanted)


@dataclass(frozen=True, kw_only=True)
class AlignmentConfig(PairFilterConfig):
    """Drop pairs whose score is below `min_score`; the score of a kept pair is stored with it."""

    REASONS: ClassVar[tuple[str, ...]] = ("alignment",)

    scorer: AlignmentScorerConfig = field(default_factory=TextOverlapConfig)
    min_score: float = 0.1

    def build(self) -> PairFilter:
        return AlignmentFilter(self)


class AlignmentFilter(PairFilter):
    """See `AlignmentConfig`."""

    def __init__(self, config: AlignmentConfig) -> None:
        self._config, self._scorer = config, config.scorer.build()
        self._name = type(config.scorer).__name__

    def check(self, pair: Pair) -> Dropped | None:
        score = self._scorer.score(pair)
        if not score >= self._config.min_score:  # NaN is dropped too
            detail = f"score {score:.3f} of {self._name}, the minimum is {self._config.min_score:g}: {pair.text[:100]}"
            return Dropped(reason="alignment", detail=detail, url=pair.image_url)
        pair.metadata[SCORE_KEY], pair.metadata[SCORER_KEY] = f"{score:.4f}", self._name
        return None


def tokens_of(text: str) -> frozenset[str]:
    """Return the words of a text with at least 3 letters in lower case; of Chinese and Japanese, pairs of characters."""
    return frozenset(_tokens(text.lower()))


def _tokens(text: str) -> Iterator[str]:
    for word in _WORD.findall(text):
        if _SPACELESS.search(word):
            for run in _SPACELESS.findall(word):
                yield from (run[at : at + 2] for at in range(max(len(run) - 1, 1)))
        elif len(word) >= _MIN_LETTERS:
            yield word
