"""Rank choices for a text: a dual encoder of bags of words, small enough to ship and to train in minutes on a CPU.

    ranker = open_ranker(folder)
    ranker.log_probabilities("wake me at six", ["set alarm", "play music"])

Text and choice are sums of embeddings of hashed features (`features`). Their cosine, times a learned scale, is the score of
the choice (StarSpace, arXiv 1709.03856). No choice has a score of its own. The decoder reads a text word by
word and knows how words depend on each other; the ranker has seen each text of training hundreds of times.

Shapes: N buckets, D dim, C choices, W features of a text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.core.config import from_dict
from openafm.ranking.features import words_of
from openafm.ranking.table import QuantizedTable, TableConfig, check_weights, read_part, write_part

NAME = "ranker"
_KNOWN_CHOICES, _LARGEST = 1024, 1000


@dataclass(frozen=True, kw_only=True)
class RankerConfig(TableConfig):
    """A ranker: scores are cosines times `scale`; `none_bias` is added to the cosine of no choice."""

    scale: float
    none_bias: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.scale <= _LARGEST, f"'scale' must be positive and at most {_LARGEST}")
        self.require(abs(self.none_bias) <= _LARGEST, f"'none_bias' must be at most {_LARGEST}")


class Ranker:
    """Ranks choices. Safe to share between threads.

    Args:
        weights: `codes` [N, D / 2] uint8, two 4-bit codes each; `scales` [N], `choice` [D, D] and `none` [D] in fp16.

    Raises:
        RankerError: the weights do not fit the config, or are not finite.
    """

    def __init__(self, config: RankerConfig, weights: Mapping[str, NDArray[Any]]) -> None:
        self.config = config
        buckets, dim = config.num_buckets, config.dim
        shapes = {"codes": (buckets, dim // 2), "scales": (buckets,), "choice": (dim, dim), "none": (dim,)}
        check_weights(weights, shapes)
        self._table = QuantizedTable(weights["codes"], weights["scales"])
        self._choice_DD, self._none_D = weights["choice"].astype(np.float32), weights["none"].astype(np.float32)
        self._choice_vector = functools.lru_cache(_KNOWN_CHOICES)(self._encoded_choice)

    def log_probabilities(self, text: str, choices: Sequence[str], *, may_be_none: bool = False) -> NDArray[np.float64]:
        """Return the natural log probability of each choice, [C], or [C + 1] with that of none last.

        A text without words says nothing: all are alike.
        """
        if not (words := words_of(text, self.config.num_buckets)):
            return np.full(len(choices) + may_be_none, -math.log(max(1, len(choices) + may_be_none)))
        text_D = _unit(self._sum(words))
        scores = [float(text_D @ self._choice_vector(choice)) for choice in choices]
        if may_be_none:
            scores.append(float(text_D @ self._none_D) + self.config.none_bias)
        scaled_C = self.config.scale * np.asarray(scores, np.float64)
        highest = scaled_C.max(initial=0.0)
        log_probabilities_C: NDArray[np.float64] = scaled_C - highest - np.log(np.exp(scaled_C - highest).sum())
        return log_probabilities_C

    def _encoded_choice(self, choice: str) -> NDArray[np.float32]:
        return _unit(self._sum(words_of(choice, self.config.num_buckets)) @ self._choice_DD)

    def _sum(self, words: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """The sum over words of the mean embedding of a word's features, [D]."""
        shares_W = np.fromiter((1 / len(word) for word in words for _ in word), np.float32)
        sum_D: NDArray[np.float32] = shares_W @ self._table.embeddings([feature for word in words for feature in word])
        return sum_D


def _unit(vector_D: NDArray[np.float32]) -> NDArray[np.float32]:
    unit_D: NDArray[np.float32] = vector_D / max(float(np.linalg.norm(vector_D)), 1e-12)
    return unit_D


def write_ranker(folder: Path, config: RankerConfig, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write a ranker into a folder, as `ranker.json` and `ranker.safetensors`."""
    write_part(folder, NAME, config, weights)


def open_ranker(folder: Path) -> Ranker:
    """Return the ranker in a folder.

    Raises:
        RankerError: a file is missing or damaged.
    """
    return read_part(folder, NAME, lambda config, weights: Ranker(from_dict(RankerConfig, config), weights))
