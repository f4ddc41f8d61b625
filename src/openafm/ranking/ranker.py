"""Rank choices for a text: a dual encoder of bags of words, small enough to ship and to train in minutes on a CPU.

    ranker = open_ranker(folder)
    ranker.log_probabilities("wake me at six", ["set alarm", "play music"])

Text and choice are sums of embeddings of hashed features (`features`). Their cosine, times a learned scale, is the score of
the choice (StarSpace, arXiv 1709.03856). A score of its own says that no choice fits. The decoder reads a text word by
word and knows how words depend on each other; the ranker has seen each text of training hundreds of times.

Shapes: N buckets, D dim, C choices, W features of a text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.core.config import Config, ConfigError, dump, from_dict
from openafm.core.errors import OpenAFMError
from openafm.core.regular_files import read_document
from openafm.ranking.features import words_of

FILES = ("ranker.json", "ranker.safetensors")
_LEVELS = 7  # of 4-bit codes, on each side of zero
_MOST_BUCKETS, _MOST_DIM = 1 << 20, 1024
_KNOWN_CHOICES = 4096


class RankerError(OpenAFMError):
    """A ranker is missing, or its files do not fit each other."""


@dataclass(frozen=True, kw_only=True)
class RankerConfig(Config):
    """A ranker. `none_bias` is added to the score of no choice; `digest` is the SHA-256 of the weights' file."""

    num_buckets: int
    dim: int
    scale: float
    none_bias: float
    digest: str = ""

    def __post_init__(self) -> None:
        self.require(0 < self.num_buckets <= _MOST_BUCKETS, f"'num_buckets' must be from 1 to {_MOST_BUCKETS}")
        self.require(0 < self.dim <= _MOST_DIM and self.dim % 2 == 0, f"'dim' must be even and at most {_MOST_DIM}")
        self.require(math.isfinite(self.scale) and self.scale > 0, "'scale' must be positive")
        self.require(math.isfinite(self.none_bias), "'none_bias' must be finite")


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
        expected = {
            "codes": (np.dtype(np.uint8), (buckets, dim // 2)),
            "scales": (np.dtype(np.float16), (buckets,)),
            "choice": (np.dtype(np.float16), (dim, dim)),
            "none": (np.dtype(np.float16), (dim,)),
        }
        found = {name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}
        if wrong := sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)):
            raise RankerError(
                f"the weights of the ranker do not fit its config: {wrong[0]} is {found.get(wrong[0])}, expected"
                f" {expected.get(wrong[0])}"
            )
        self._codes, self._scales = weights["codes"], weights["scales"].astype(np.float32)
        self._choice_DD, self._none_D = weights["choice"].astype(np.float32), weights["none"].astype(np.float32)
        if not all(np.isfinite(each).all() for each in (self._scales, self._choice_DD, self._none_D)):
            raise RankerError("the weights of the ranker are not finite")
        self._choice_vector = functools.lru_cache(_KNOWN_CHOICES)(self._encoded_choice)

    def log_probabilities(self, text: str, choices: Sequence[str], *, may_be_none: bool = False) -> NDArray[np.float64]:
        """Return the natural log probability of each choice, [C], or [C + 1] with that of none last.

        A text without words says nothing: all are alike.
        """
        if not words_of(text, self.config.num_buckets):
            return np.full(len(choices) + may_be_none, -math.log(max(1, len(choices) + may_be_none)))
        text_D = _unit(self._sum(text))
        scores = [float(text_D @ self._choice_vector(choice)) for choice in choices]
        if may_be_none:
            scores.append(float(text_D @ self._none_D) + self.config.none_bias)
        scaled_C = self.config.scale * np.asarray(scores, np.float64)
        highest = scaled_C.max(initial=0.0)
        log_probabilities_C: NDArray[np.float64] = scaled_C - highest - np.log(np.exp(scaled_C - highest).sum())
        return log_probabilities_C

    def _encoded_choice(self, choice: str) -> NDArray[np.float32]:
        return _unit(self._sum(choice) @ self._choice_DD)

    def _sum(self, text: str) -> NDArray[np.float32]:
        """The sum over words of the mean embedding of a word's features, [D]."""
        words = words_of(text, self.config.num_buckets)
        features_W = np.fromiter(itertools.chain.from_iterable(words), np.intp)
        shares_W = np.fromiter((1 / len(word) for word in words for _ in word), np.float32) * self._scales[features_W]
        codes_WH = self._codes[features_W]
        codes_WD = np.stack([codes_WH & 15, codes_WH >> 4], axis=-1).reshape(len(features_W), self.config.dim)
        sum_D: NDArray[np.float32] = np.matmul(shares_W, codes_WD.astype(np.float32) - 8)
        return sum_D


def _unit(vector_D: NDArray[np.float32]) -> NDArray[np.float32]:
    unit_D: NDArray[np.float32] = vector_D / max(float(np.linalg.norm(vector_D)), 1e-12)
    return unit_D


def quantized(table_ND: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Return the 4-bit codes [N, D / 2] and the scales [N] of an embedding table."""
    scales_N = (np.abs(table_ND).max(axis=1) / _LEVELS).astype(np.float16)
    divisors_N = np.maximum(scales_N.astype(np.float32), np.finfo(np.float16).tiny)
    codes_ND = (np.clip(np.round(table_ND / divisors_N[:, None]), -_LEVELS, _LEVELS) + 8).astype(np.uint8)
    return codes_ND[:, ::2] | codes_ND[:, 1::2] << 4, scales_N


def write_ranker(folder: Path, config: RankerConfig, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write a ranker into a folder."""
    from safetensors.numpy import save

    data = save(dict(sorted(weights.items())))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILES[1]).write_bytes(data)
    text = dump(replace(config, digest=hashlib.sha256(data).hexdigest()))
    (folder / FILES[0]).write_text(text, encoding="utf-8")


def open_ranker(folder: Path) -> Ranker:
    """Return the ranker in a folder with `ranker.json` and `ranker.safetensors`, loaded once until the files change.

    Raises:
        RankerError: a file is missing or damaged.
    """
    try:
        return _loaded(folder, tuple((folder / name).stat().st_mtime_ns for name in FILES))
    except OSError as error:
        raise RankerError(f"{folder} has no ranker: it needs {' and '.join(FILES)} ({error})") from error


@functools.lru_cache(maxsize=4)
def _loaded(folder: Path, changed: tuple[int, ...]) -> Ranker:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    documents = [read_document(folder / name) for name in FILES]
    try:
        config = from_dict(RankerConfig, json.loads(documents[0]))
        if hashlib.sha256(documents[1]).hexdigest() != config.digest:
            raise ValueError(f"{FILES[1]} is not the file of {FILES[0]}")
        return Ranker(config, load(documents[1]))
    except (SafetensorError, ConfigError, RankerError, ValueError, RecursionError) as error:
        raise RankerError(f"{folder}: the ranker is damaged: {error}; restore it") from error
