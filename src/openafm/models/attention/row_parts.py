"""Attention context of a part of the positions of packed rows; other ranks compute the other parts.

Shapes: B rows, S positions of a part, W positions of a whole row, P parts, H heads, K key/value heads, C head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from openafm.models.activations import past_of_window
from openafm.models.attention.context import AttentionContext, BatchContext, LastPositions, PackedDocuments
from openafm.models.attention.masks import CausalMask, Mask
from openafm.models.attention.part_attention import PartAttention, part_attention, pieces_of
from openafm.models.attention.spans import Span
from openafm.models.transfer import to_device


class KeyValueExchange(Protocol):
    """Exchange of keys and values between the ranks that divide the positions of rows."""

    def gather(self, x_BSKC: Tensor) -> Tensor:
        """Return the values of whole rows, x_BWKC; the gradient of each position is the sum of those of all ranks."""

    def with_past(self, x_BSKC: Tensor, length: int) -> Tensor:
        """Return each chunk of these positions after the last `length` of the chunk before it, which has at least as many.

        The first chunk of a row has no past.
        """

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, without a gradient."""


class RowPartContext(BatchContext):
    """The positions `ranges`, equal chunks, of rows of packed documents.

    Layers with a window get the ends of the chunks before these, other layers the keys and values of whole rows. Layers that
    read another layer's keys and values reuse what was exchanged for the layer before them.
    """

    def __init__(
        self,
        documents: Sequence[Span],
        num_rows: int,
        row_length: int,
        ranges: Sequence[range],
        exchange: KeyValueExchange,
        device: torch.device,
    ) -> None:
        self._ranges, self._row = ranges, range(row_length)
        positions_BS = PackedDocuments(documents, num_rows, row_length).positions_BS
        own_BS = torch.cat([positions_BS[:, own.start : own.stop] for own in ranges], dim=1)
        super().__init__((), to_device(own_BS, device))
        self._whole_documents, self._exchange = documents, exchange
        self._has_documents = any(span.start < own.stop and span.stop > own.start for own in ranges for span in documents)
        self._exchanged: tuple[tuple[int, int | None], Tensor] | None = None
        self._backends: dict[tuple[range, range, torch.dtype], PartAttention] = {}

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        super().store(layer, k_BSKC, v_BSKC)
        if self._exchanged is not None and self._exchanged[0][0] == layer:
            self._exchanged = None  # of an earlier forward pass of a recomputed layer

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        past = self._past(mask)
        exchanged = self._exchanged_values(layer, past)
        if past is None:
            keys, values = [self._row] * len(self._ranges), [exchanged] * len(self._ranges)
        else:
            keys = [range(max(0, own.start - past), own.stop) for own in self._ranges]
            values = list(exchanged.split([len(seen) for seen in keys], dim=1))
        outputs = [
            self._attend_in_chunk(own, seen, q_BLHC, kv_BMKC, mask)
            for own, seen, q_BLHC, kv_BMKC in zip(
                self._ranges, keys, q_BSHC.chunk(len(self._ranges), dim=1), values, strict=True
            )
        ]
        o_BSHC = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return o_BSHC if self._has_documents else _KeptInGraph.apply(o_BSHC, q_BSHC, exchanged)

    def _attend_in_chunk(self, own: range, seen: range, q_BLHC: Tensor, kv_BMKC: Tensor, mask: Mask) -> Tensor:
        backend = self._backend(own, seen, q_BLHC)
        k_NKC, v_NKC = kv_BMKC.flatten(0, 1).chunk(2, dim=1)
        return backend.attend(q_BLHC.flatten(0, 1), k_NKC, v_NKC, mask).view_as(q_BLHC)

    def narrow(self, indices_N: Tensor) -> AttentionContext:
        return _NarrowedPart(self, to_device(indices_N, self.positions_BS.device))

    def last(self) -> LastPositions:
        raise AssertionError("parts of rows are for training, which has no last positions")

    def _past(self, mask: Mask) -> int | None:
        """Return how many positions of the chunk before a layer reads; None for whole rows."""
        return past_of_window(mask.window if isinstance(mask, CausalMask) else None, len(self._ranges[0]))

    def _exchanged_values(self, layer: int, past: int | None) -> Tensor:
        """Return keys and values, concatenated along the heads."""
        if self._exchanged is None or self._exchanged[0] != (layer, past):
            kv_BSKC = torch.cat(self._stored[layer], dim=2)
            found = self._exchange.gather(kv_BSKC) if past is None else self._exchange.with_past(kv_BSKC, past)
            self._exchanged = ((layer, past), found)
        return self._exchanged[1]

    def _backend(self, own: range, seen: range, q_BLHC: Tensor) -> PartAttention:
        key = (own, seen, q_BLHC.dtype)
        if key not in self._backends:
            pieces = pieces_of(self._whole_documents, len(q_BLHC), own, seen)
            self._backends[key] = part_attention(pieces, q_BLHC.device, q_BLHC.dtype)
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
