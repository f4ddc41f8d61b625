"""Kinds of features of texts for guardrail models: hidden states of a bundle, classes of words, n-grams of characters.

Shapes: N texts, D model dim, S tokens, F features.
"""

from __future__ import annotations

import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from openafm.bundle import Bundle
from openafm.core.config import Config, ConfigError
from openafm.safety.classifier.word_classes import WordClassFeatures
from openafm.safety.words import normalize
from openafm.tokenizer.conversation import AssistantTurn, Turn, UserTurn

if TYPE_CHECKING:
    import torch

    from openafm.safety.classifier.examples import Side

_TOKENS_PER_BATCH = 1024
_GRAM_LENGTHS = (3, 4, 5)
_NGRAM_LENGTH = 0.5  # of the vector of n-grams: word classes weigh more


class TextFeatures(Protocol):
    """Compute the features [N, F] of texts. Threads may share it.

    Attributes:
        is_dense: True if the values are of any scale, so that training standardizes them; others are of length 1 or less.
        signature: identifies the data that the features depend on, such as a bundle; a head is for one signature.
    """

    is_dense: bool

    @property
    def num_features(self) -> int: ...

    @property
    def signature(self) -> str: ...

    def __call__(self, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True, kw_only=True)
class TextFeaturesConfig(Config, ABC):
    """Base of the kinds of features."""

    @abstractmethod
    def build(self, bundle: Bundle | None) -> TextFeatures:
        """Return the features; `bundle` is the one whose states are read, if there is one."""


@dataclass(frozen=True, kw_only=True)
class WordClassesConfig(TextFeaturesConfig):
    """Classes of words in six languages, their pairs and close pairs. Needs no bundle."""

    def build(self, bundle: Bundle | None) -> TextFeatures:
        return WordClassFeatures()


@dataclass(frozen=True, kw_only=True)
class CharacterNgramsConfig(TextFeaturesConfig):
    """Counts of hashed n-grams of 3 to 5 characters, for texts in any language. Needs no bundle."""

    num_buckets: int = 4096

    def __post_init__(self) -> None:
        self.require(self.num_buckets >= 1, f"num_buckets must be at least 1, got {self.num_buckets}")

    def build(self, bundle: Bundle | None) -> TextFeatures:
        return _CharacterNgrams(self.num_buckets)


@dataclass(frozen=True, kw_only=True)
class HiddenStatesConfig(TextFeaturesConfig):
    """Mean, maximum and last of a bundle's hidden states. Runs in torch: the native engine returns logits only."""

    def build(self, bundle: Bundle | None) -> TextFeatures:
        if bundle is None:
            raise ConfigError("HiddenStatesConfig reads the states of a bundle; name it, or leave this kind out")
        return _HiddenStates(bundle)


class JoinedFeatures:
    """Concatenate features."""

    def __init__(self, parts: Sequence[TextFeatures]) -> None:
        self._parts = parts
        self.signatures = [part.signature for part in parts]
        self.is_dense_F = np.concatenate([np.full(part.num_features, part.is_dense) for part in parts])

    def __call__(self, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]:
        return np.concatenate([part(texts, side) for part in self._parts], axis=1)


class _CharacterNgrams:
    is_dense = False
    signature = ""

    def __init__(self, num_buckets: int) -> None:
        self.num_features = num_buckets

    def __call__(self, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]:
        counts_NF = np.zeros((len(texts), self.num_features), np.float32)
        for row_F, text in zip(counts_NF, texts, strict=True):
            padded = f" {' '.join(normalize(text).split())} "
            for length in _GRAM_LENGTHS:
                for start in range(len(padded) - length + 1):
                    row_F[zlib.crc32(padded[start : start + length].encode()) % self.num_features] += 1
            row_F *= _NGRAM_LENGTH / max(float(np.linalg.norm(row_F)), 1.0)
        return counts_NF


class _HiddenStates:
    is_dense = True

    def __init__(self, bundle: Bundle) -> None:
        from openafm.bundle.decoder import load_decoder

        self._bundle, self.signature = bundle, bundle.signature
        self._decoder = load_decoder(bundle).eval()
        self._lock = threading.Lock()

    @property
    def num_features(self) -> int:
        return 3 * self._decoder.config.dim

    def __call__(self, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]:
        if not texts:
            return np.zeros((0, self.num_features), np.float32)
        tokens = [self._tokens(text, side) for text in texts]
        return np.concatenate([self._pooled(batch) for batch in _batches(tokens)])

    def _tokens(self, text: str, side: Side) -> list[int]:
        turn: Turn = UserTurn(text=text) if side == "prompt" else AssistantTurn(text=text)
        tokens = self._bundle.template.encode_turn(self._bundle.tokenizer, turn).tokens
        return list(tokens)[-self._bundle.config.context_length :]

    def _pooled(self, batch: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        import torch

        from openafm.models.attention.context import PackedDocuments
        from openafm.models.attention.spans import Span

        stops = np.cumsum([len(tokens) for tokens in batch]).tolist()
        starts = [0, *stops[:-1]]
        spans = [Span(0, start, stop) for start, stop in zip(starts, stops, strict=True)]
        row_1S = torch.tensor([[token for tokens in batch for token in tokens]], device=self._decoder.device)
        context = PackedDocuments(spans, 1, row_1S.shape[1], self._decoder.device)
        with torch.no_grad(), self._lock:
            states_SD: torch.Tensor = self._decoder.hidden(row_1S, context)[0].float()
        parts = [states_SD[start:stop] for start, stop in zip(starts, stops, strict=True)]
        pooled = [torch.cat([part.mean(0), part.amax(0), part[-1]]) for part in parts]
        return np.asarray(torch.stack(pooled).cpu().numpy(), np.float32)


def _batches(tokens: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    num_tokens = 0
    for each in tokens:
        if batch and num_tokens + len(each) > _TOKENS_PER_BATCH:
            yield batch
            batch, num_tokens = [], 0
        batch.append(each)
        num_tokens += len(each)
    yield batch
