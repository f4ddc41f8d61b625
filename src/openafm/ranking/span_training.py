"""Train a span ranker: the spans of a text that are the value of a field, against all other spans, no value, another value.

Shapes: T texts, W most words of a text, D dim, F fields of all texts, L lengths.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openafm.ranking.optimization import TableTrainingConfig, optimize
from openafm.ranking.span_features import MOST_WORDS, Word, name_words, places_of, words_of
from openafm.ranking.span_ranker import ABSENT, MOST_LENGTH, OTHER, FieldName, SpanRankerConfig, shapes_of
from openafm.ranking.table import quantized

_MARKS = " .,;:!?'\""
_INITIAL_STD = 0.05
LEAST_DECIDED = 30


@dataclass(frozen=True, kw_only=True)
class FilledText:
    """A text with fields and their values; None for no value."""

    text: str
    fields: tuple[tuple[FieldName, str | None], ...]


@dataclass(frozen=True, kw_only=True)
class SpanTrainingConfig(TableTrainingConfig):
    """How a span ranker is trained. `dropped_features` is the probability that a feature is left out."""

    num_buckets: int = 1 << 16
    dim: int = 64
    num_steps: int = 32_000
    texts_per_step: int = 24
    learning_rate: float = 0.01
    dropped_features: float = 0.2


class _Features:
    """The features of several places, one after the other, and the number of those of each place."""

    def __init__(self, features: Sequence[Sequence[int]]) -> None:
        self.ids = np.fromiter(itertools.chain.from_iterable(features), np.int32)
        self.counts = np.fromiter(map(len, features), np.int32)


@dataclass(frozen=True, kw_only=True)
class _Example:
    starts: _Features
    ends: _Features
    insides: _Features
    fields: _Features
    right: tuple[tuple[int, ...], ...]  # of each field the indices of the right scores


def train_span_ranker(
    config: SpanTrainingConfig,
    texts: Sequence[FilledText],
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[SpanRankerConfig, dict[str, NDArray[Any]]]:
    """Return the config and the weights of a span ranker, as `write_span_ranker` takes them. Deterministic on one thread.

    Texts without words or with more than are searched are left out.

    Args:
        on_step: called after each step with its number, from 1, and its loss.
    """
    torch.manual_seed(config.seed)
    rng = random.Random(config.seed)
    known = [found for text in texts if (found := _example(text, config.num_buckets)) is not None]
    encoder = SpanEncoder(config.num_buckets, config.dim, config.dropped_features)

    def next_loss() -> Tensor:
        return _loss(encoder, rng.sample(known, min(len(known), config.texts_per_step)))

    optimize(config, encoder.table.weight, encoder.dense.parameters(), next_loss, on_step)
    config_of_ranker, weights = encoder.exported()
    return replace(config_of_ranker, decided=decided_names(texts)), weights


def decided_names(texts: Sequence[FilledText]) -> tuple[str, ...]:
    """Return the names of fields, as words, that have a value and none in at least `LEAST_DECIDED` texts each."""
    found = Counter((" ".join(name_words(field.name)), value is None) for text in texts for field, value in text.fields)
    names = {name for name, _ in found}
    return tuple(sorted(name for name in names if min(found[name, True], found[name, False]) >= LEAST_DECIDED))


def _example(text: FilledText, num_buckets: int) -> _Example | None:
    words = words_of(text.text)
    if not text.fields or not 0 < len(words) <= MOST_WORDS:
        return None
    places = places_of(words, num_buckets)
    return _Example(
        starts=_Features(places.starts),
        ends=_Features(places.ends),
        insides=_Features(places.insides),
        fields=_Features([field.features(num_buckets) for field, _ in text.fields]),
        right=tuple(_right(text.text, words, value) for _, value in text.fields),
    )


def _right(text: str, words: Sequence[Word], value: str | None) -> tuple[int, ...]:
    """The indices of the right scores: both kinds, then spans by first word and length."""
    if value is None:
        return (ABSENT,)
    lower, wanted = text.casefold(), value.casefold().strip(_MARKS)
    if not wanted or len(lower) != len(text):
        return (OTHER,)
    first = {word.start: index for index, word in enumerate(words)}
    last = {word.end: index for index, word in enumerate(words)}
    found, at = [], lower.find(wanted)
    while at >= 0:
        start, end = first.get(at), last.get(at + len(wanted))
        if start is not None and end is not None and end - start < MOST_LENGTH:
            found.append(2 + start * MOST_LENGTH + end - start)
        at = lower.find(wanted, at + 1)
    return tuple(found) or (OTHER,)


class SpanEncoder(nn.Module):
    """The embedding table and the matrices of a span ranker."""

    def __init__(self, num_buckets: int, dim: int, dropped_features: float) -> None:
        super().__init__()
        self.num_buckets, self.dim, self._dropped_features = num_buckets, dim, dropped_features
        self.table = nn.EmbeddingBag(num_buckets, dim, mode="sum", sparse=True)
        nn.init.normal_(self.table.weight, std=_INITIAL_STD)
        self.dense = nn.ParameterDict({name: torch.zeros(shape) for name, shape in shapes_of(dim).items()})
        with torch.no_grad():
            for name in ("start", "end", "inside"):
                self.dense[name].copy_(torch.eye(dim))

    def scores(self, examples: Sequence[_Example]) -> Tensor:
        """Return the scores of both kinds and of all spans for each field, [F, 2 + W L]."""
        counts = [len(example.starts.counts) for example in examples]
        most = max(counts)
        starts, ends, insides = (
            self._padded([getattr(example, name) for example in examples], counts) for name in ("starts", "ends", "insides")
        )
        of_T = torch.tensor([index for index, example in enumerate(examples) for _ in example.right])
        field_FD = self._sums([example.fields for example in examples])
        start_FW, end_FW, inside_FW = (
            torch.einsum("fwd,fd->fw", states[of_T], field_FD @ self.dense[name])
            for states, name in ((starts, "start"), (ends, "end"), (insides, "inside"))
        )
        length_FL = self.dense["length_bias"] + field_FD @ self.dense["lengths"].T
        is_word_FW = torch.arange(most) < torch.tensor(counts)[of_T][:, None]
        totals_FW = torch.cat([inside_FW.new_zeros(len(of_T), 1), inside_FW.cumsum(1)], 1)
        spans = []
        for more in range(MOST_LENGTH):
            count = max(0, most - more)
            inside = (totals_FW[:, more + 1 :] - totals_FW[:, :count]) / (more + 1) ** 0.5
            score_FW = start_FW[:, :count] + end_FW[:, more:] + inside + length_FL[:, more : more + 1]
            score_FW = score_FW.masked_fill(~is_word_FW[:, more:], -torch.inf)
            spans.append(torch.cat([score_FW, score_FW.new_full((len(of_T), most - count), -torch.inf)], 1))
        text_TD = insides.sum(1) / torch.tensor(counts)[:, None]
        kind_text = torch.einsum("fd,kde,fe->fk", text_TD[of_T], self.dense["kind_text"], field_FD)
        kind_F2 = kind_text + field_FD @ self.dense["kind"].T + self.dense["kind_bias"]
        return torch.cat([kind_F2, torch.stack(spans, 2).flatten(1)], 1)

    def _padded(self, features: Sequence[_Features], counts: list[int]) -> Tensor:
        """The sums of the words of all texts, [T, W, D]; zeros after the words of a text."""
        return nn.utils.rnn.pad_sequence(list(torch.split(self._sums(features), counts)), batch_first=True)

    def _sums(self, features: Sequence[_Features]) -> Tensor:
        """The sums of the features of all places, some of which are left out."""
        ids = torch.from_numpy(np.concatenate([each.ids for each in features]))
        counts = np.concatenate([each.counts for each in features])
        is_kept = torch.rand(len(ids)) >= self._dropped_features
        before = np.concatenate([[0], np.cumsum(is_kept.numpy())])
        starts = before[np.concatenate([[0], np.cumsum(counts)[:-1]])]
        sums: Tensor = self.table(ids[is_kept], torch.from_numpy(starts).to(torch.int32))
        return sums

    def exported(self) -> tuple[SpanRankerConfig, dict[str, NDArray[Any]]]:
        """Return the config and the weights, as `write_span_ranker` takes them."""
        codes, scales = quantized(self.table.weight.detach().numpy())
        dense = {name: weight.detach().numpy().astype(np.float16) for name, weight in self.dense.items()}
        return SpanRankerConfig(num_buckets=self.num_buckets, dim=self.dim), {"codes": codes, "scales": scales, **dense}


def _loss(encoder: SpanEncoder, examples: Sequence[_Example]) -> Tensor:
    """The negative log of the summed probability of the right scores."""
    scores = encoder.scores(examples)
    is_right = torch.zeros_like(scores, dtype=torch.bool)
    for row, right in enumerate(right for example in examples for right in example.right):
        is_right[row, list(right)] = True
    return (scores.logsumexp(1) - scores.masked_fill(~is_right, -torch.inf).logsumexp(1)).mean()
