"""Attention context of a part of the positions of packed rows; other ranks compute the other parts.

Shapes: B rows, S positions of a part, W positions of a whole row, P parts, H heads, K key/value heads, C head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from openafm.models.attention_context import AttentionContext, BatchContext, LastPositions, PackedDocuments
from openafm.models.masks import CausalMask, Mask
from openafm.models.part_attention import PartAttention, part_attention, pieces_of
from openafm.models.spans import Span
from openafm.models.transfer import to_device


class KeyValueExchange(Protocol):
    """Exchange of keys and values between the ranks that divide the positions of rows."""

    def gather(self, x_BSKC: Tensor) -> Tensor:
        """Return the values of whole rows, x_BWKC; the gradient of each position is the sum of those of all ranks."""

    def with_past(self, x_BSKC: Tensor, length: int) -> Tensor:
        """Return these positions after the last `length` of the previous part, which has at least as many.

        The first part has no past.
        """

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, without a gradient."""


class RowPartContext(BatchContext):
    """Part `index` of `count` of the positions of rows of packed documents.

    Layers with a window get the end of the previous part, other layers the keys and values of whole rows. Layers that read
    another layer's keys and values reuse what was exchanged for the layer before them.
    """

    def __init__(
        self,
        documents: Sequence[Span],
        num_rows: int,
        row_length: int,
        index: int,
        count: int,
        exchange: KeyValueExchange,
        device: torch.device,
    ) -> None:
        length = row_length // count
        self._own, self._row = range(index * length, (index + 1) * length), range(row_length)
        whole = PackedDocuments(documents, num_rows, row_length)
        super().__init__((), to_device(whole.positions_BS[:, self._own.start : self._own.stop], device))
        self._whole_documents, self._exchange = documents, exchange
        self._has_documents = any(span.start < self._own.stop and span.stop > self._own.start for span in documents)
        self._exchanged: tuple[tuple[int, int | None], Tensor] | None = None
        self._backends: dict[tuple[range, torch.dtype], PartAttention] = {}

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        super().store(layer, k_BSKC, v_BSKC)
        if self._exchanged is not None and self._exchanged[0][0] == layer:
            self._exchanged = None  # of an earlier forward pass of a recomputed layer

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        past = self._past(mask)
        keys = self._row if past is None else range(max(0, self._own.start - past), self._own.stop)
        exchanged = self._exchanged_values(layer, past)
        backend = self._backend(keys, q_BSHC)
        q_NHC, (k_MKC, v_MKC) = q_BSHC.flatten(0, 1), exchanged.flatten(0, 1).chunk(2, dim=1)
        o_NHC = backend.attend(q_NHC, k_MKC, v_MKC, mask)
        if not self._has_documents:
            o_NHC = _KeptInGraph.apply(o_NHC, q_NHC, exchanged)
        return o_NHC.view_as(q_BSHC)

    def narrow(self, indices_N: Tensor) -> AttentionContext:
        return _NarrowedPart(self, to_device(indices_N, self.positions_BS.device))

    def last(self) -> LastPositions:
        raise AssertionError("parts of rows are for training, which has no last positions")

    def _past(self, mask: Mask) -> int | None:
        """Return how many positions of the previous part a layer reads; None for whole rows."""
        window = mask.window if isinstance(mask, CausalMask) else None
        return None if window is None or window - 1 > len(self._own) else window - 1

    def _exchanged_values(self, layer: int, past: int | None) -> Tensor:
        """Return keys and values, concatenated along the heads."""
        if self._exchanged is None or self._exchanged[0] != (layer, past):
            kv_BSKC = torch.cat(self._stored[layer], dim=2)
            found = self._exchange.gather(kv_BSKC) if past is None else self._exchange.with_past(kv_BSKC, past)
            self._exchanged = ((layer, past), found)
        return self._exchanged[1]

    def _backend(self, keys: range, q_BSHC: Tensor) -> PartAttention:
        key = (keys, q_BSHC.dtype)
        if key not in self._backends:
            pieces = pieces_of(self._whole_documents, len(q_BSHC), self._own, keys)
            self._backends[key] = part_attention(pieces, q_BSHC.device, q_BSHC.dtype)
        return self._backends[key]


class _NarrowedPart(AttentionContext):
    """Some positions of a part as the only queries [1, N, H, C]. All are computed, and the others discarded."""

    def __init__(self, part: RowPartContext, indices_N: Tensor) -> None:
        super().__init__(part.positions_BS.flatten()[indices_N][None])
        self._part, self._indices_N = part, indices_N

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        raise AssertionError(f"layer {layer} stores keys and values but was built to be skipped")

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        shape = self._part.positions_BS.shape
        q_MHC = q_BSHC.new_zeros(shape.numel(), *q_BSHC.shape[2:]).index_copy(0, self._indices_N, q_BSHC[0])
        o_BSHC = self._part.attend(layer, q_MHC.unflatten(0, shape), mask)
        return o_BSHC.flatten(0, 1)[self._indices_N][None]

    def last(self) -> LastPositions:
        raise AssertionError("the context is already narrowed to some positions")


class _KeptInGraph(torch.autograd.Function):
    """Return x, with gradients of zeros for tensors that x does not depend on in a part of padding alone.

    So all ranks take part in the collectives of the backward pass, and reduce gradients of the same weights.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        ctx.shapes = [(other.shape, other.dtype, other.device) for other in others]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *dxs: Tensor) -> tuple[Tensor, ...]:
        return dxs[0], *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes)
