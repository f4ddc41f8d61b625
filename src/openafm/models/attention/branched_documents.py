"""Attention context of documents whose branches share a beginning, such as the answers to one prompt.

Shapes: B rows, S positions of a row, N = B * S, M positions with each beginning repeated for its branches, H heads, K
key/value heads, C head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from openafm.models.attention.context import AttentionContext, BatchContext, LastPositions, NarrowedContext
from openafm.models.attention.document_attention import DocumentAttention, Queries, Segment, document_attention
from openafm.models.attention.masks import Mask
from openafm.models.attention.spans import EmbeddingSpan, Span, branches_of
from openafm.models.transfer import to_device


class BranchedDocuments(BatchContext):
    """Documents of a beginning and `branches`, which continue the beginning and do not see each other.

    A beginning is computed once; only its keys and values are repeated, so that attention sees a document for each branch.
    Branches are disjoint and in row-major order; each document ends with its last branch. Padding has position 0 and an
    output of zeros.
    """

    def __init__(
        self,
        documents: Sequence[Span],
        branches: Sequence[Span],
        num_rows: int,
        row_length: int,
        device: torch.device | None = None,
        spans: Sequence[Span | EmbeddingSpan] = (),
    ) -> None:
        layout = _layout(documents, branches, num_rows, row_length)
        device = device or torch.device("cpu")
        super().__init__(documents, to_device(layout.positions_N.view(num_rows, row_length), device), spans)
        self._layout, self._sources_M = layout, to_device(layout.sources_M, device)
        self._queries = Queries(layout.places_N, layout.segments, device)

    @cached_property
    def _attention(self) -> DocumentAttention:
        spans_M = None if self._spans_BS is None else self._spans_BS.flatten()[self._layout.sources_M]
        return document_attention(self._layout.segments, spans_M, self.positions_BS.device, joins_equal=True)

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        # Indexed and not selected: the gradient of index_select is not deterministic on a GPU.
        k_MKC, v_MKC = (x.flatten(0, 1)[self._sources_M] for x in (k_BSKC, v_BSKC))
        super().store(layer, k_MKC[None], v_MKC[None])

    def attend(self, layer: int, q_BSHC: Tensor, mask: Mask) -> Tensor:
        k_1MKC, v_1MKC = self._stored[layer]
        return self._attention.attend_at(self._queries, q_BSHC.flatten(0, 1), k_1MKC[0], v_1MKC[0], mask).view_as(q_BSHC)

    def narrow(self, indices_N: Tensor) -> AttentionContext:
        queries = Queries(self._layout.places_N[indices_N], self._layout.segments, self.positions_BS.device)
        positions_1N = self.positions_BS.flatten()[to_device(indices_N, self.positions_BS.device)][None]
        return NarrowedContext(self._stored, self._attention, positions_1N, queries)

    def last(self) -> LastPositions:
        raise AssertionError("branches are for training, which has no last positions")


@dataclass(frozen=True)
class _Layout:
    """A batch with the beginnings repeated: its documents and paddings, and which position of the batch each place holds.

    `places_N` are the places of the positions of the batch, for a beginning those of its first copy; they ascend.
    """

    segments: list[Segment]
    sources_M: Tensor
    places_N: Tensor
    positions_N: Tensor


def _layout(documents: Sequence[Span], branches: Sequence[Span], num_rows: int, row_length: int) -> _Layout:
    segments, sources, done = list[Segment](), list[Tensor](), 0

    def add(positions: Tensor, *, is_document: bool) -> None:
        segments.append(Segment(len(positions), is_document))
        sources.append(positions)

    positions_BS = torch.arange(num_rows * row_length).view(num_rows, row_length)
    for document, own in zip(documents, branches_of(documents, branches), strict=True):
        start = document.row * row_length + document.start
        if start > done:
            add(torch.arange(done, start), is_document=False)
        row_S = positions_BS[document.row]
        for branch in own or [document]:
            beginning = row_S[document.start : own[0].start if own else document.start]
            add(torch.cat((beginning, row_S[branch.start : branch.stop])), is_document=True)
        done = start + document.stop - document.start
    if done < num_rows * row_length:
        add(torch.arange(done, num_rows * row_length), is_document=False)
    sources_M = torch.cat(sources)
    places_N = torch.from_numpy(np.unique(sources_M.numpy(), return_index=True)[1])
    positions_M = torch.cat([torch.arange(segment.length) * segment.is_document for segment in segments])
    return _Layout(segments, sources_M, places_N, positions_M[places_N])
