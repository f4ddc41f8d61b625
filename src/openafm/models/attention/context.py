"""Attention contexts: where keys and values are stored, and which of them a query sees.

A layer stores keys and values in the context under its index and attends to those of any stored layer. The attention module
is independent of the kind of context. KV-cache sharing across layers, packed documents, the caches of a running engine and
the prefill bypass are contexts.

Shapes: B batch, S sequence, N = B * S positions, H heads, K key/value heads, C head dim, D documents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from openafm.models.attention.document_attention import DocumentAttention, Queries, document_attention, segments_of
from openafm.models.attention.masked_attention import masked_attention
from openafm.models.attention.masks import Mask
from openafm.models.attention.position_embedding import PositionEmbedding
from openafm.models.attention.spans import EmbeddingSpan, check_spans
from openafm.models.attention.spans import Span as Span
from openafm.models.config import PositionConfig
from openafm.models.transfer import to_device


class AttentionContext(ABC):
    """The positions of one forward pass and the keys and values that its layers have stored so far."""

    def __init__(self, positions_BS: Tensor) -> None:
        self.positions_BS = positions_BS
        self._position_embeddings: dict[tuple[PositionConfig, int], PositionEmbedding] = {}

    def position_embedding(self, config: PositionConfig, head_dim: int) -> PositionEmbedding:
        """Return the position embedding of this batch, built on first use and shared by all layers."""
        key = (config, head_dim)
        if key not in self._position_embeddings:
            self._position_embeddings[key] = config.build(self.positions_BS, head_dim)
        return self._position_embeddings[key]

    @abstractmethod
    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        """Store the keys and values of this batch's positions for `layer`."""

    def discarding_stored(self) -> AbstractContextManager[None]:
        """Discard the keys and values that are stored in this block, in contexts of training: those from before it stay."""
        return nullcontext()

    @abstractmethod
    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        """Return the attention of the queries to the keys and values of `layer` under `mask`, o_BSHC.

        The mask applies to each document separately; documents do not see each other.

        Raises:
            UnsupportedMaskError: the context cannot apply this kind of mask.
        """

    @abstractmethod
    def last(self) -> LastPositions:
        """Return the last position of every document, which sees all stored keys and values (report 2.1)."""


@dataclass(frozen=True, kw_only=True)
class LastPositions:
    """Indices of the last positions in the flattened batch, and a context in which they are the only queries [1, D]."""

    indices_D: Tensor
    context: AttentionContext


class BatchContext(AttentionContext):
    """Documents in rows without a cached past; keys and values are those of one forward pass.

    `spans` are the spans whose positions see each other under `PrefixMask`.

    Raises:
        SpanError: a span lies outside of its row or overlaps another.
    """

    def __init__(self, documents: Sequence[Span], positions_BS: Tensor, spans: Sequence[Span | EmbeddingSpan] = ()) -> None:
        super().__init__(positions_BS)
        self._documents = tuple(documents)
        self._segments = segments_of(documents, *positions_BS.shape)
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self._spans_BS: Tensor | None = None
        if spans:
            check_spans(spans, *positions_BS.shape)
            self._spans_BS = torch.zeros(positions_BS.shape, dtype=torch.long)
            for number, span in enumerate(spans, start=1):
                self._spans_BS[span.row, span.start : span.stop] = number

    @cached_property
    def _attention(self) -> DocumentAttention:
        spans_N = None if self._spans_BS is None else self._spans_BS.flatten()
        return document_attention(self._segments, spans_N, self.positions_BS.device)

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        self._stored[layer] = (k_BSKC, v_BSKC)

    @contextmanager
    def discarding_stored(self) -> Iterator[None]:
        before = dict(self._stored)
        try:
            yield
        finally:
            self._stored.clear()  # in place: narrowed contexts share it
            self._stored.update(before)

    def narrow(self, indices_N: Tensor) -> AttentionContext:
        """Return a context in which only these positions are queries [1, N, H, C].

        `indices_N`, on the host, point into the flattened batch, ascend and lie in documents. Each position sees the same
        keys as before. Layers that only read other layers' keys and values run for these positions alone: in prefill the
        last position of each document, in training the positions that carry loss.
        """
        queries = Queries(indices_N, self._segments, self.positions_BS.device)
        return NarrowedContext(self._stored, self._attention, self.positions_BS.flatten()[queries.indices_Q][None], queries)

    def last(self) -> LastPositions:
        row_length = self.positions_BS.shape[1]
        indices = [document.row * row_length + document.stop - 1 for document in self._documents]
        indices_D = torch.tensor(indices)
        return LastPositions(indices_D=to_device(indices_D, self.positions_BS.device), context=self.narrow(indices_D))


class WholeRows(BatchContext):
    """Every row of the batch is one document: one attention call for all rows."""

    def __init__(
        self,
        num_rows: int,
        row_length: int,
        device: torch.device | None = None,
        spans: Sequence[Span | EmbeddingSpan] = (),
    ) -> None:
        rows = [Span(row=row, start=0, stop=row_length) for row in range(num_rows)]
        super().__init__(rows, torch.arange(row_length, device=device).expand(num_rows, row_length), spans)

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        return masked_attention(q_BSHC, *self._stored[layer], mask, self._spans_BS)


class PackedDocuments(BatchContext):
    """Rows hold several documents that do not see each other; a backend for the device computes attention.

    Positions count from 0 in each document. Padding belongs to no document and has position 0 and an output of zeros.
    Documents are disjoint and in row-major order.
    """

    def __init__(
        self,
        documents: Sequence[Span],
        num_rows: int,
        row_length: int,
        device: torch.device | None = None,
        spans: Sequence[Span | EmbeddingSpan] = (),
    ) -> None:
        segments = segments_of(documents, num_rows, row_length)
        positions = [torch.arange(segment.length) * segment.is_document for segment in segments]
        positions_BS = torch.cat(positions).view(num_rows, row_length)
        super().__init__(documents, to_device(positions_BS, device or "cpu"), spans)

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        q_NHC, k_NKC, v_NKC = (x.flatten(0, 1) for x in (q_BSHC, *self._stored[layer]))
        return self._attention.attend(q_NHC, k_NKC, v_NKC, mask).view_as(q_BSHC)


class NarrowedContext(AttentionContext):
    """Some positions of a batch as the only queries [1, N, H, C], over keys and values that earlier layers have stored."""

    def __init__(
        self,
        stored: dict[int, tuple[Tensor, Tensor]],
        attention: DocumentAttention,
        positions_1N: Tensor,
        queries: Queries,
    ) -> None:
        super().__init__(positions_1N)
        self._stored, self._attention, self._queries = stored, attention, queries

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        raise AssertionError(f"layer {layer} stores keys and values but was built to be skipped")

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        k_NKC, v_NKC = (x.flatten(0, 1) for x in self._stored[layer])
        return self._attention.attend_at(self._queries, q_BSHC[0], k_NKC, v_NKC, mask)[None]

    def last(self) -> LastPositions:
        raise AssertionError("the context is already narrowed to some positions")
