"""KV caches of running sequences, and the attention context that reads and extends them.

Shapes: H heads, K key/value heads, G = H / K query heads for each of them, C head dim, P capacity in positions, L keys,
Q queries of a sequence, D sequences, N tokens of all sequences in a step (as one row, B = 1 and S = N).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from openafm.models.attention.context import AttentionContext, LastPositions
from openafm.models.attention.masked_attention import causal_attention, unsupported
from openafm.models.attention.masks import CausalMask, Mask
from openafm.models.config import DecoderConfig, SharedKeysValuesConfig
from openafm.models.decoder import FEW_TOKENS
from openafm.runtime.engines.base import Cache

_FIRST_CAPACITY = 64
# Prefill chunks with at most this many keys attend in double precision, which takes two to three times as long.
_FINE_KEYS = 1024
# Sequences with at most this many keys attend together; for longer ones, padding costs more than a call for each.
_TOGETHER_KEYS = 1024
_LEAST_SLACK = 64  # tokens; the rollback after a verification takes at most half of it


class TorchCache(Cache):
    """Keys and values of one sequence, for every layer that has its own."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = {
            layer: LayerCache(
                torch.empty(
                    (config.kv_heads(layer), 0, config.layers[layer].attention.head_dim), dtype=dtype, device=device
                ),
                widest_window(config, layer),
                config.context_length,
            )
            for layer in config.own_layers
        }

    @property
    def num_bytes(self) -> int:
        """Allocated bytes, including free capacity."""
        return sum(tensor.nbytes for stored in self.layers.values() for _, tensor in stored.named())

    def reserve(self, num_positions: int) -> None:
        """Allocate capacity for `num_positions` in every layer."""
        for stored in self.layers.values():
            stored.reserve(self.length, num_positions)

    def truncate(self, length: int) -> None:
        if not all(stored.can_go_on_from(length) for stored in self.layers.values()):
            length = 0
            for stored in self.layers.values():
                stored.start = 0
        self.length = length

    def copy(self, length: int) -> TorchCache:
        copied = copy.copy(self)
        copied.length = length if all(stored.can_go_on_from(length) for stored in self.layers.values()) else 0
        copied.layers = {layer: stored.copy(copied.length) for layer, stored in self.layers.items()}
        return copied

    def memory(self) -> dict[int, int]:
        return {tensor.data_ptr(): tensor.nbytes for stored in self.layers.values() for _, tensor in stored.named()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            f"{layer}.{name}": _to_numpy(held_KLC)
            for layer, stored in self.layers.items()
            for name, held_KLC in stored.copy(self.length).named()
        }

    def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
        for layer, stored in self.layers.items():
            stored.load(arrays[f"{layer}.keys"], arrays[f"{layer}.values"], length)
        self.length = length


class LayerCache:
    """Keys and values of one layer and sequence: [K, P, C] for the positions from `start` on, contiguous in memory.

    Capacity doubles when it is exhausted. With a window it is bounded: the visible positions then move to the front of a new
    buffer. Beyond the window, a quarter of it and at least `_LEAST_SLACK` positions are kept, so that a sequence can be
    rolled back that far without recomputation.

    Args:
        empty_K0C: an empty tensor of the dtype and device to use.
        window: widest window of the layers that read here; None if one of them has no window.
    """

    def __init__(self, empty_K0C: Tensor, window: int | None, context_length: int) -> None:
        self.keys_KPC = self.values_KPC = empty_K0C
        self.start = 0
        # Positions that a token sees before its own; positions kept; capacity before the next move.
        self._num_seen = self._num_kept = self._most = context_length
        if window is not None:
            self._num_seen = window - 1
            self._num_kept = self._num_seen + max(window // 4, _LEAST_SLACK)
            self._most = min(context_length, self._num_kept + max(window // 16, _LEAST_SLACK))

    def named(self) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
        return ("keys", self.keys_KPC), ("values", self.values_KPC)

    def reserve(self, length: int, stop: int) -> None:
        """Allocate capacity up to position `stop`; the first `length` positions are valid.

        A chunk longer than the window takes as much as it needs.
        """
        capacity = self.keys_KPC.shape[1]
        if stop - self.start > capacity:
            first = self._first_kept(length)
            doubled = min(max(2 * capacity, _FIRST_CAPACITY), self._most)
            self._move(first, length, max(doubled, stop - first))

    def write(self, start: int, k_KNC: Tensor, v_KNC: Tensor) -> None:
        """Store keys and values at the positions from `start` on, within the capacity."""
        places = slice(start - self.start, start - self.start + k_KNC.shape[1])
        self.keys_KPC[:, places] = k_KNC
        self.values_KPC[:, places] = v_KNC

    def read(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [K, L, C] of the positions from `start` to `stop`."""
        places = slice(start - self.start, stop - self.start)
        return self.keys_KPC[:, places], self.values_KPC[:, places]

    def can_go_on_from(self, length: int) -> bool:
        """Return True if all positions that a token after the first `length` sees are stored."""
        return self.start <= max(0, length - self._num_seen)

    def copy(self, length: int) -> LayerCache:
        """Return an independent copy of the first `length` positions without free capacity."""
        copied, first = copy.copy(self), min(self._first_kept(length), length)
        copied._move(first, length, length - first)
        return copied

    def load(self, keys: NDArray[Any], values: NDArray[Any], length: int) -> None:
        """Load the arrays of a copy of `length` positions into an empty cache.

        Raises:
            ValueError: the arrays have another dtype or shape, or lack positions that the next token sees.
        """
        count = keys.shape[1] if keys.ndim == 3 else 0
        if not min(length, self._num_seen) <= count <= length:
            raise ValueError(f"{count} of {length} positions")
        self._move(0, 0, count)
        _load(keys, self.keys_KPC)
        _load(values, self.values_KPC)
        self.start = length - count

    def _first_kept(self, length: int) -> int:
        return max(self.start, length - self._num_kept)

    def _move(self, first: int, stop: int, capacity: int) -> None:
        """Move the positions from `first` to `stop` to a new buffer for `capacity` positions."""
        keys_KLC, values_KLC = self.read(first, stop)
        keys_KPC, values_KPC = _with_room(keys_KLC, capacity), _with_room(values_KLC, capacity)
        self.keys_KPC, self.values_KPC, self.start = keys_KPC, values_KPC, first


def widest_window(config: DecoderConfig, layer: int) -> int | None:
    """Return the widest window of the layers that read the keys and values of `layer`; None if one has no window."""
    windows = [
        reader.attention.window
        for index, reader in enumerate(config.layers)
        if index == layer or reader.attention.keys_values == SharedKeysValuesConfig(layer=layer)
    ]
    return None if None in windows else max(window for window in windows if window is not None)


class CachedSequences(AttentionContext):
    """Tokens of several sequences in one row. Each attends to its own sequence only.

    Linear layers run once over the row. Attention runs once for each sequence, or once for all if each has one token. New
    keys and values are stored after a cache's `length`, which the caller advances when the whole step has succeeded.
    """

    def __init__(self, caches: Sequence[TorchCache], counts: Sequence[int], device: torch.device) -> None:
        self._caches, self._counts = caches, list(counts)
        self._stops = [cache.length + count for cache, count in zip(caches, counts, strict=True)]
        for cache, stop in zip(caches, self._stops, strict=True):
            cache.reserve(stop)
        starts_and_stops = [(cache.length, stop) for cache, stop in zip(caches, self._stops, strict=True)]
        positions = [position for start, stop in starts_and_stops for position in range(start, stop)]
        super().__init__(torch.tensor([positions], device=device))
        self._visible: dict[int, Tensor] = {}

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        k_KNC, v_KNC = k_BSKC[0].transpose(0, 1), v_BSKC[0].transpose(0, 1)
        begin = 0
        for cache, count, stop in zip(self._caches, self._counts, self._stops, strict=True):
            new = slice(begin, begin + count)
            cache.layers[layer].write(stop - count, k_KNC[:, new], v_KNC[:, new])
            begin += count

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        if not isinstance(mask, CausalMask):
            raise unsupported(mask, "a cache of a running sequence", "CausalMask")
        window = mask.window
        if len(self._caches) == 1:
            return _attend(self._caches[0].layers[layer], q_BSHC, self._stops[0], window)
        if max(self._counts) == 1 and self._num_keys(window) <= _TOGETHER_KEYS:
            return self._attend_together(layer, q_BSHC, window)
        outputs = [
            _attend(cache.layers[layer], q_BQHC, stop, window)
            for cache, q_BQHC, stop in zip(self._caches, q_BSHC.split(self._counts, dim=1), self._stops, strict=True)
        ]
        return torch.cat(outputs, dim=1)

    def _num_keys(self, window: int | None) -> int:
        """Return the most keys that a sequence's last token sees."""
        return max(self._stops) if window is None else min(window, max(self._stops))

    def _attend_together(self, layer: int, q_BDHC: Tensor, window: int | None) -> Tensor:
        """Return o_BDHC, the attention of one token of each sequence, over keys and values that are padded to one length."""
        num_keys = self._num_keys(window)
        held = [
            cache.layers[layer].read(max(0, stop - num_keys), stop)
            for cache, stop in zip(self._caches, self._stops, strict=True)
        ]
        k_DKLC, v_DKLC = (
            pad_sequence([x_KLC.transpose(0, 1) for x_KLC in each], batch_first=True).transpose(1, 2).to(q_BDHC.dtype)
            for each in zip(*held, strict=True)
        )
        q_DKGC = q_BDHC.view(*k_DKLC.shape[:2], -1, k_DKLC.shape[-1])
        if num_keys not in self._visible:
            counts_D = torch.tensor([min(stop, num_keys) for stop in self._stops], device=q_BDHC.device)
            places_L = torch.arange(num_keys, device=q_BDHC.device)
            self._visible[num_keys] = (places_L < counts_D[:, None])[:, None, None]
        visible_D11L = self._visible[num_keys]
        return F.scaled_dot_product_attention(q_DKGC, k_DKLC, v_DKLC, attn_mask=visible_D11L).reshape(q_BDHC.shape)

    def last(self) -> LastPositions:
        lasts_D = torch.tensor(self._counts, device=self.positions_BS.device).cumsum(0) - 1
        if len(lasts_D) == self.positions_BS.shape[1]:
            return LastPositions(indices_D=lasts_D, context=self)
        return LastPositions(
            indices_D=lasts_D, context=_LastOfEach(self._caches, self._stops, self.positions_BS[:, lasts_D])
        )


class _LastOfEach(CachedSequences):
    """Queries of the last token of each sequence, once all keys and values have been stored."""

    def __init__(self, caches: Sequence[TorchCache], stops: list[int], positions_1D: Tensor) -> None:
        AttentionContext.__init__(self, positions_1D)
        self._caches, self._stops, self._counts = caches, stops, [1] * len(stops)
        self._visible = {}

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        raise AssertionError(f"layer {layer} stores keys and values, so it cannot be skipped")


def _attend(stored: LayerCache, q_BQHC: Tensor, stop: int, window: int | None) -> Tensor:
    """Return o_BQHC, the attention of one sequence's last queries to its first `stop` positions."""
    num_queries = q_BQHC.shape[1]
    if num_queries <= FEW_TOKENS:
        first = stop - num_queries + 1
        return torch.cat([_attend_one(stored, q, first + i, window) for i, q in enumerate(q_BQHC.split(1, dim=1))], dim=1)
    if stop > _FINE_KEYS and q_BQHC.dtype is torch.float64:
        q_BQHC = q_BQHC.float()
    start = 0 if window is None else max(0, stop - num_queries - window + 1)
    k_KLC, v_KLC = stored.read(start, stop)
    return causal_attention(q_BQHC, k_KLC.transpose(0, 1)[None], v_KLC.transpose(0, 1)[None], window)


def _attend_one(stored: LayerCache, q_B1HC: Tensor, stop: int, window: int | None) -> Tensor:
    """Return o_B1HC, the attention of the query at position `stop - 1`."""
    start = 0 if window is None else max(0, stop - window)
    k_KLC, v_KLC = (x_KLC.to(q_B1HC.dtype) for x_KLC in stored.read(start, stop))
    # One token sees every key, so the query heads of a key/value head are passed as its queries: up to three times as fast
    # as repeating keys and values.
    q_KGC = q_B1HC.reshape(len(k_KLC), -1, q_B1HC.shape[-1])
    return F.scaled_dot_product_attention(q_KGC[None], k_KLC[None], v_KLC[None]).view(q_B1HC.shape)


def _with_room(held_KLC: Tensor, capacity: int) -> Tensor:
    """Return a buffer [K, P, C] with a copy of the positions at its front."""
    num_heads, num_held, head_dim = held_KLC.shape
    buffer_KPC = held_KLC.new_empty((num_heads, capacity, head_dim))
    buffer_KPC[:, :num_held] = held_KLC
    return buffer_KPC


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Return a copy; bfloat16, which numpy lacks, as its bits."""
    tensor = tensor.cpu().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _load(array: NDArray[Any], into: Tensor) -> None:
    """Copy the result of `_to_numpy` into a tensor.

    Raises:
        ValueError: the array has another shape or dtype.
    """
    expected = _to_numpy(into)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise ValueError(f"{array.dtype}{list(array.shape)} instead of {expected.dtype}{list(expected.shape)}")
    into.copy_(torch.from_numpy(np.array(array)).view(into.dtype))
