"""Find the values of fields in a text: which span of it a field has as its value, or that it has none.

    ranker = open_span_ranker(folder)
    (city,) = ranker.find("what is the weather in Oslo", [FieldName("city", "weather")])
    city.spans, city.absent, city.other    # probabilities of spans, of no value, and of a value that is no span of the text

A span scores by its first word, its last word, the words in it and its length, each by a product with the field (extractive
question answering, arXiv 1606.05250, with hashed features instead of a network).

Shapes: W words, D dim, F fields, L lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.core.config import from_dict
from openafm.ranking.span_features import MOST_WORDS, field_features, name_words, places_of, words_of
from openafm.ranking.table import QuantizedTable, TableConfig, check_weights, read_part, write_part

NAME = "spans"
MOST_LENGTH = 14
"""Words of a span."""
ABSENT, OTHER = 0, 1
_MOST_SPANS = 24
_LEAST = 1e-5  # probability of a span

_Scores: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class SpanRankerConfig(TableConfig):
    """A span ranker. `decided` are the names of fields, as words, that training had often with a value and without one."""

    decided: tuple[str, ...] = ()


class FieldName(NamedTuple):
    """A field: its name, the name of what it is a field of, and its description."""

    name: str
    context: str
    description: str = ""

    def features(self, num_buckets: int) -> tuple[int, ...]:
        """Return its features. None is an empty list."""
        return field_features(f"{self.name} {self.description}", self.context, num_buckets)


@dataclass(frozen=True)
class FoundValue:
    """Probabilities of the likeliest spans, of no value, and of a value that is no span of the text."""

    spans: dict[str, float]
    absent: float
    other: float


class SpanRanker:
    """Ranks the spans of a text. Safe to share between threads.

    Args:
        weights: the table as `codes` and `scales`; `start`, `end` and `inside` [D, D], `lengths` [L, D] and `length_bias`
            [L]; for no value and for another one `kind_text` [2, D, D], `kind` [2, D] and `kind_bias` [2].

    Raises:
        RankerError: the weights do not fit the config, or are not finite.
    """

    def __init__(self, config: SpanRankerConfig, weights: Mapping[str, NDArray[Any]]) -> None:
        dim = config.dim
        shapes: dict[str, tuple[int, ...]] = {"codes": (config.num_buckets, dim // 2), "scales": (config.num_buckets,)}
        check_weights(weights, shapes | shapes_of(dim))
        self.config, self._table = config, QuantizedTable(weights["codes"], weights["scales"])
        self._decided = frozenset(config.decided)
        self._weights = {name: weights[name].astype(np.float32) for name in shapes_of(dim)}

    def decides(self, name: str) -> bool:
        """Return whether fields of this name were common in training, with and without a value."""
        return " ".join(name_words(name)) in self._decided

    def find(self, text: str, fields: Sequence[FieldName]) -> list[FoundValue] | None:
        """Return what each field has in a text; None for a text without words, or with more than are searched."""
        words = words_of(text)
        if not fields or not 0 < len(words) <= MOST_WORDS:
            return None
        places = places_of(words, self.config.num_buckets)
        start_WD, end_WD, inside_WD = (self._sums(each) for each in (places.starts, places.ends, places.insides))
        field_FD = self._sums([field.features(self.config.num_buckets) for field in fields])
        weights = self._weights
        start_FW, end_FW, inside_FW = (
            np.matmul(field_FD @ weights[name], each_WD.T, dtype=np.float32)
            for name, each_WD in (("start", start_WD), ("end", end_WD), ("inside", inside_WD))
        )
        length_FL: _Scores = weights["length_bias"] + field_FD @ weights["lengths"].T
        kind_F2 = np.stack([self._kind(kind, inside_WD.mean(0), field_FD) for kind in (ABSENT, OTHER)], axis=1)
        scores_FWL = _span_scores(start_FW, end_FW, inside_FW, length_FL)
        found = []
        for scores_WL, kind_2 in zip(scores_FWL, kind_F2, strict=True):
            scores = np.concatenate([kind_2, scores_WL.reshape(-1)])
            probabilities = np.exp(scores - scores.max())
            probabilities /= probabilities.sum()
            spans = self._likeliest(text, [(word.start, word.end) for word in words], probabilities[2:])
            found.append(FoundValue(spans, float(probabilities[ABSENT]), float(probabilities[OTHER])))
        return found

    def _sums(self, features: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The sums of the embeddings of features, [W, D]. No list of features is empty."""
        embeddings = self._table.embeddings([feature for each in features for feature in each])
        starts = np.cumsum([0, *(len(each) for each in features[:-1])])
        sums_WD: NDArray[np.float32] = np.add.reduceat(embeddings, starts, axis=0)
        return sums_WD

    def _kind(self, kind: int, text_D: _Scores, field_FD: _Scores) -> _Scores:
        weights = self._weights
        scores_F: _Scores = field_FD @ (text_D @ weights["kind_text"][kind] + weights["kind"][kind])
        scores_F += weights["kind_bias"][kind]
        return scores_F

    def _likeliest(self, text: str, words: list[tuple[int, int]], probabilities: NDArray[np.float32]) -> dict[str, float]:
        """The likeliest spans by their text; those that occur several times with the sum of their probabilities."""
        spans: dict[str, float] = {}
        count = min(_MOST_SPANS, len(probabilities))
        likeliest = np.argpartition(-probabilities, count - 1)[:count]
        for index in likeliest[np.argsort(-probabilities[likeliest], kind="stable")].tolist():
            first, length = divmod(index, MOST_LENGTH)
            if probabilities[index] >= _LEAST:
                span = text[words[first][0] : words[first + length][1]]
                spans[span] = spans.get(span, 0.0) + float(probabilities[index])
        return spans


def shapes_of(dim: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights beside the table."""
    matrices: dict[str, tuple[int, ...]] = dict.fromkeys(("start", "end", "inside"), (dim, dim))
    lengths = {"lengths": (MOST_LENGTH, dim), "length_bias": (MOST_LENGTH,)}
    return matrices | lengths | {"kind_text": (2, dim, dim), "kind": (2, dim), "kind_bias": (2,)}


def _span_scores(start_FW: _Scores, end_FW: _Scores, inside_FW: _Scores, length_FL: _Scores) -> _Scores:
    """Return the scores of spans by their first word and the number of words after it, [F, W, L]; -inf beyond the text."""
    num_fields, num_words = start_FW.shape
    totals_FW = np.concatenate([np.zeros((num_fields, 1), np.float32), np.cumsum(inside_FW, axis=1)], axis=1)
    scores_FWL = np.full((num_fields, num_words, MOST_LENGTH), -np.inf, np.float32)
    for more in range(min(MOST_LENGTH, num_words)):
        count = num_words - more
        inside_FW = (totals_FW[:, more + 1 :] - totals_FW[:, :count]) / (more + 1) ** 0.5
        scores_FWL[:, :count, more] = start_FW[:, :count] + end_FW[:, more:] + inside_FW + length_FL[:, more : more + 1]
    return scores_FWL


def write_span_ranker(folder: Path, config: SpanRankerConfig, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write a span ranker into a folder, as `spans.json` and `spans.safetensors`."""
    write_part(folder, NAME, config, weights)


def open_span_ranker(folder: Path) -> SpanRanker:
    """Return the span ranker in a folder.

    Raises:
        RankerError: a file is missing or damaged.
    """
    return read_part(folder, NAME, lambda config, weights: SpanRanker(from_dict(SpanRankerConfig, config), weights))
