"""Keys and values of running sequences, and the attention context that reads and extends them.

Shapes: H heads, K key/value heads, G = H / K query heads for each of them, C head dim, P capacity in positions, L keys,
Q queries of a sequence, N tokens of all sequences in a step (as one row, B = 1 and S = N).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from openafm.models.attention_context import AttentionContext, LastPositions, causal_attention
from openafm.models.config import DecoderConfig
from openafm.models.decoder import FEW_TOKENS
from openafm.runtime.engine import Cache

_FIRST_CAPACITY = 64


class TorchCache(Cache):
    """Keys and values of one sequence: tensors [K, P, C] for every layer that has its own.

    Capacity doubles when it runs out, up to the context length, so appending copies no more than the new tokens most of the
    time. A layer with a window keeps what has left it too: a rollback of any length stays possible.
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self.layers = {layer: self._empty(layer, 0) for layer in config.own_layers}
        self._capacity = 0

    def reserve(self, num_positions: int) -> None:
        """Make room for `num_positions` in every layer."""
        if num_positions > self._capacity:
            doubled = min(max(2 * self._capacity, _FIRST_CAPACITY), self._config.context_length)
            self._resize(max(doubled, num_positions))

    def copy(self) -> TorchCache:
        copied = TorchCache(self._config, self._dtype, self._device)
        copied.layers, copied.length, copied._capacity = self.layers, self.length, self._capacity
        copied._resize(self.length)
        return copied

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            f"{layer}.{name}": _to_numpy(stored_KPC[:, : self.length])
            for layer, stored in self.layers.items()
            for name, stored_KPC in stored.named()
        }

    def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
        self.reserve(length)
        for layer, stored in self.layers.items():
            for name, stored_KPC in stored.named():
                _load(arrays[f"{layer}.{name}"], stored_KPC[:, :length])
        self.length = length

    def _resize(self, capacity: int) -> None:
        layers = {layer: self._empty(layer, capacity) for layer in self.layers}
        for layer, stored in self.layers.items():
            for (_, old_KPC), (_, new_KPC) in zip(stored.named(), layers[layer].named(), strict=True):
                new_KPC[:, : self.length] = old_KPC[:, : self.length]
        self.layers, self._capacity = layers, capacity

    def _empty(self, layer: int, capacity: int) -> KeysValues:
        shape = (self._config.kv_heads(layer), capacity, self._config.layers[layer].attention.head_dim)
        return KeysValues(
            keys_KPC=torch.empty(shape, dtype=self._dtype, device=self._device),
            values_KPC=torch.empty(shape, dtype=self._dtype, device=self._device),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KeysValues:
    """What one layer keeps of one sequence."""

    keys_KPC: Tensor
    values_KPC: Tensor

    def named(self) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
        return ("keys", self.keys_KPC), ("values", self.values_KPC)


class CachedSequences(AttentionContext):
    """Tokens of several sequences in one row: each sees its own past and nothing of the others.

    Linear layers run once over the row, attention runs sequence by sequence. Caches get the new keys and values behind their
    `length`, which the caller moves on once the whole step has succeeded.
    """

    def __init__(self, caches: Sequence[TorchCache], counts: Sequence[int], device: torch.device) -> None:
        self._caches, self._counts = caches, list(counts)
        self._stops = [cache.length + count for cache, count in zip(caches, counts, strict=True)]
        for cache, stop in zip(caches, self._stops, strict=True):
            cache.reserve(stop)
        starts_and_stops = [(cache.length, stop) for cache, stop in zip(caches, self._stops, strict=True)]
        positions = [position for start, stop in starts_and_stops for position in range(start, stop)]
        super().__init__(torch.tensor([positions], device=device))

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        k_KNC, v_KNC = k_BSKC[0].transpose(0, 1), v_BSKC[0].transpose(0, 1)
        begin = 0
        for cache, count, stop in zip(self._caches, self._counts, self._stops, strict=True):
            stored = cache.layers[layer]
            stored.keys_KPC[:, stop - count : stop] = k_KNC[:, begin : begin + count]
            stored.values_KPC[:, stop - count : stop] = v_KNC[:, begin : begin + count]
            begin += count

    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        if len(self._caches) == 1:
            return _attend(self._caches[0].layers[layer], q_BSHC, self._stops[0], window)
        outputs = [
            _attend(cache.layers[layer], q_BQHC, stop, window)
            for cache, q_BQHC, stop in zip(self._caches, q_BSHC.split(self._counts, dim=1), self._stops, strict=True)
        ]
        return torch.cat(outputs, dim=1)

    def last(self) -> LastPositions:
        lasts_D = torch.tensor(self._counts, device=self.positions_BS.device).cumsum(0) - 1
        if len(lasts_D) == self.positions_BS.shape[1]:
            return LastPositions(indices_D=lasts_D, context=self)
        return LastPositions(
            indices_D=lasts_D, context=_LastOfEach(self._caches, self._stops, self.positions_BS[:, lasts_D])
        )


class _LastOfEach(CachedSequences):
    """The last token of each sequence as the only queries, once all have been stored."""

    def __init__(self, caches: Sequence[TorchCache], stops: list[int], positions_1D: Tensor) -> None:
        AttentionContext.__init__(self, positions_1D)
        self._caches, self._stops, self._counts = caches, stops, [1] * len(stops)

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        raise AssertionError(f"layer {layer} stores keys and values but was built to be skipped")


def _attend(stored: KeysValues, q_BQHC: Tensor, stop: int, window: int | None) -> Tensor:
    """Attention of the last queries of one sequence to its first `stop` positions. Returns o_BQHC."""
    num_queries = q_BQHC.shape[1]
    if num_queries <= FEW_TOKENS:
        first = stop - num_queries + 1
        return torch.cat([_attend_one(stored, q, first + i, window) for i, q in enumerate(q_BQHC.split(1, dim=1))], dim=1)
    start = 0 if window is None else max(0, stop - num_queries - window + 1)
    k_KLC, v_KLC = stored.keys_KPC[:, start:stop], stored.values_KPC[:, start:stop]
    return causal_attention(q_BQHC, k_KLC.transpose(0, 1)[None], v_KLC.transpose(0, 1)[None], window)


def _attend_one(stored: KeysValues, q_B1HC: Tensor, stop: int, window: int | None) -> Tensor:
    """Attention of the query at position `stop - 1`. Returns o_B1HC."""
    start = 0 if window is None else max(0, stop - window)
    k_KLC, v_KLC = stored.keys_KPC[:, start:stop], stored.values_KPC[:, start:stop]
    # One token sees everything, so the query heads of a key/value head may stand as queries beside each other: up to three
    # times as fast as repeating keys and values for them.
    q_KGC = q_B1HC.reshape(len(k_KLC), -1, q_B1HC.shape[-1])
    return F.scaled_dot_product_attention(q_KGC[None], k_KLC[None], v_KLC[None]).view(q_B1HC.shape)


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    """A copy; bfloat16, which numpy has not, as its bits."""
    tensor = tensor.cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _load(array: NDArray[Any], into: Tensor) -> None:
    """The inverse of `_to_numpy`.

    Raises:
        ValueError: another shape or dtype than what `into` takes.
    """
    expected = _to_numpy(into)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise ValueError(f"it holds {array.dtype}{list(array.shape)} where {expected.dtype}{list(expected.shape)} belongs")
    into.copy_(torch.from_numpy(np.array(array)).view(into.dtype))
