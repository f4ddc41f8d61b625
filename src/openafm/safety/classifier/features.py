"""Features of texts: pooled hidden states of a bundle's decoder, and hashed character n-grams.

Shapes: N texts, D model dim, S tokens, F features.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from openafm.bundle import Bundle
from openafm.safety.words import normalize
from openafm.tokenizer.conversation import AssistantTurn, Turn, UserTurn

if TYPE_CHECKING:
    import torch

    from openafm.safety.classifier.examples import Side

_TOKENS_PER_BATCH = 1024
_GRAM_LENGTHS = (3, 4, 5)


class TextFeatures:
    """Compute the features of texts with a bundle. Threads may share it.

    The native engine returns logits only, so the decoder runs in torch.

    Args:
        bundle: the bundle whose hidden states are pooled.
        num_hashed: number of buckets for n-grams of characters; 0: pooled states alone.
    """

    def __init__(self, bundle: Bundle, num_hashed: int) -> None:
        from openafm.bundle.decoder import load_decoder

        self.bundle, self._num_hashed = bundle, num_hashed
        self._decoder = load_decoder(bundle).eval()
        self._lock = threading.Lock()

    @property
    def num_features(self) -> int:
        return 3 * self._decoder.config.dim + self._num_hashed

    def __call__(self, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]:
        """Return the features [N, F]: mean, maximum and last of the states of each text's tokens, then n-grams."""
        if not texts:
            return np.zeros((0, self.num_features), np.float32)
        tokens = [self._tokens(text, side) for text in texts]
        pooled = np.concatenate([self._pooled(batch) for batch in _batches(tokens)])
        return np.concatenate([pooled, np.stack([self._hashed(text) for text in texts])], axis=1)

    def _tokens(self, text: str, side: Side) -> list[int]:
        turn: Turn = UserTurn(text=text) if side == "prompt" else AssistantTurn(text=text)
        tokens = self.bundle.template.encode_turn(self.bundle.tokenizer, turn).tokens
        return list(tokens)[-self.bundle.config.context_length :]

    def _pooled(self, batch: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        import torch

        from openafm.models.attention_context import PackedDocuments
        from openafm.models.spans import Span

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

    def _hashed(self, text: str) -> npt.NDArray[np.float32]:
        """Return the counts of n-grams of the normalized text by bucket, with length 1."""
        counts = np.zeros(self._num_hashed, np.float32)
        if not self._num_hashed:
            return counts
        padded = f" {' '.join(normalize(text).split())} "
        for length in _GRAM_LENGTHS:
            for start in range(len(padded) - length + 1):
                counts[zlib.crc32(padded[start : start + length].encode()) % self._num_hashed] += 1
        norm = float(np.linalg.norm(counts))
        return counts / norm if norm else counts


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
