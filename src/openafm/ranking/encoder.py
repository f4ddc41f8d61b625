"""The dual encoder of a ranker while it is trained.

Shapes: T texts, C choices, D dim.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from openafm.ranking.ranker import RankerConfig
from openafm.ranking.table import quantized

Words: TypeAlias = Sequence[tuple[int, ...]]
"""The features of each word of a text (`features.words_of`)."""

_INITIAL_STD, _INITIAL_LOG_SCALE = 0.4, 2.0


class DualEncoder(nn.Module):
    """The embedding table, the matrix of choices, the vector and the bias of no choice, and the scale of scores.

    Args:
        dropped_words: probability that a word is left out; at least one stays.
    """

    def __init__(self, num_buckets: int, dim: int, dropped_words: float) -> None:
        super().__init__()
        self.num_buckets, self.dim, self._dropped_words = num_buckets, dim, dropped_words
        self.table = nn.EmbeddingBag(num_buckets, dim, mode="sum", sparse=True)
        nn.init.normal_(self.table.weight, std=_INITIAL_STD / dim**0.5)
        self.choice = nn.Parameter(torch.eye(dim))
        self.none = nn.Parameter(torch.zeros(dim))
        self.none_bias = nn.Parameter(torch.zeros(()))
        self.log_scale = nn.Parameter(torch.tensor(_INITIAL_LOG_SCALE))

    def dense_parameters(self) -> list[nn.Parameter]:
        """Return all parameters except the table, whose gradients are sparse."""
        return [self.choice, self.none, self.none_bias, self.log_scale]

    def scores(self, texts: Sequence[Words], choices: Sequence[Words], rng: random.Random) -> tuple[Tensor, Tensor]:
        """Return the logits of all choices, [T, C], and those of none, [T]."""
        text_TD = normalize(self._sums(texts, rng), dim=-1)
        choice_CD = normalize(self._sums(choices, rng) @ self.choice, dim=-1)
        scale = self.log_scale.exp()
        return text_TD @ choice_CD.T * scale, (text_TD @ self.none + self.none_bias) * scale

    def _sums(self, texts: Sequence[Words], rng: random.Random) -> Tensor:
        """The sums of the mean embeddings of words, [T, D]."""
        features: list[int] = []
        shares: list[float] = []
        starts: list[int] = []
        for words in texts:
            starts.append(len(features))
            for word in [word for word in words if rng.random() >= self._dropped_words] or words:
                features += word
                shares += [1 / len(word)] * len(word)
        sums_TD: Tensor = self.table(torch.tensor(features), torch.tensor(starts), torch.tensor(shares))
        return sums_TD

    def exported(self) -> tuple[RankerConfig, dict[str, NDArray[Any]]]:
        """Return the config and the weights of the ranker, as `write_ranker` takes them."""
        codes, scales = quantized(self.table.weight.detach().numpy())
        config = RankerConfig(
            num_buckets=self.num_buckets,
            dim=self.dim,
            scale=float(self.log_scale.detach().exp()),
            none_bias=float(self.none_bias.detach()),
        )
        halves = {
            name: tensor.detach().numpy().astype(np.float16)
            for name, tensor in (("choice", self.choice), ("none", self.none))
        }
        return config, {"codes": codes, "scales": scales, **halves}
