"""Attention within packed documents: an interface with a backend for each kind of device.

On a CPU one call per document is several times faster than one call under a block mask. On a GPU one call of the flash
kernel for documents of any lengths computes all of them, without masks and without a launch per document.

Shapes: N positions of the flattened batch, Q of them queries, H heads, K key/value heads, C head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import signature
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openafm.models.attention.masked_attention import masked_attention, masked_attention_at
from openafm.models.attention.masks import BidirectionalMask, CausalMask, Mask, PrefixMask
from openafm.models.attention.spans import Span
from openafm.models.transfer import to_device

FLASH_DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
FLASH_DEVICES = {"cuda"}
"""Types of devices with the flash kernel. Traces of a step add the type that stands for a GPU."""


@dataclass(frozen=True)
class Segment:
    """A document or the padding between two documents."""

    length: int
    is_document: bool


def segments_of(documents: Sequence[Span], num_rows: int, row_length: int) -> list[Segment]:
    """Return the documents of the flattened batch and the padding between them, in order."""
    segments: list[Segment] = []
    done = 0
    for document in documents:
        start, stop = (document.row * row_length + at for at in (document.start, document.stop))
        if start > done:
            segments.append(Segment(start - done, False))
        segments.append(Segment(stop - start, True))
        done = stop
    if done < num_rows * row_length:
        segments.append(Segment(num_rows * row_length - done, False))
    return segments


class Queries:
    """Some positions as the only queries: ascending indices of the flattened batch, on the host and on the device."""

    def __init__(self, indices_Q: Tensor, segments: Sequence[Segment], device: torch.device) -> None:
        self._host_Q = indices_Q.cpu()
        self.indices_Q = to_device(indices_Q, device)
        self._segments = segments

    @cached_property
    def places(self) -> list[Tensor]:
        """The places of each segment's queries in the segment, on the host."""
        stops = torch.tensor(list(accumulate(segment.length for segment in self._segments)))
        ends = torch.searchsorted(self._host_Q, stops - 1, right=True)
        of_segments = self._host_Q.split(ends.diff(prepend=ends.new_zeros(1)).tolist())
        starts = [stop - segment.length for stop, segment in zip(stops.tolist(), self._segments, strict=True)]
        return [indices - start for indices, start in zip(of_segments, starts, strict=True)]

    @cached_property
    def same_shape(self) -> list[list[int]]:
        """The documents with queries, by their number: those of equal length with queries at equal places together."""
        found: dict[tuple[int, bytes], list[int]] = {}
        for number, (segment, places) in enumerate(zip(self._segments, self.places, strict=True)):
            if segment.is_document and len(places):
                found.setdefault((segment.length, places.numpy().tobytes()), []).append(number)
        return list(found.values())


class DocumentAttention(ABC):
    """Attention of positions to those of their own document, under a mask. Padding gets an output of zeros."""

    @abstractmethod
    def attend(self, q_NHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, mask: Mask) -> Tensor:
        """Return the attention of all positions, o_NHC."""

    @abstractmethod
    def attend_at(self, queries: Queries, q_QHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, mask: Mask) -> Tensor:
        """Return the attention of some positions, o_QHC."""


def document_attention(
    segments: Sequence[Segment], spans_N: Tensor | None, device: torch.device, *, joins_equal: bool = False
) -> DocumentAttention:
    """Return the backend for a device. `spans_N`, on the host, holds the number of the span of each position or 0.

    `joins_equal` computes documents of equal shape together where a call for each is made otherwise.
    """
    each = (AttentionPerShape if joins_equal else AttentionPerDocument)(segments, spans_N)
    if device.type not in FLASH_DEVICES:
        return each
    return FlashAttention(segments, each, device, has_spans=spans_N is not None)


class AttentionPerDocument(DocumentAttention):
    """One call of scaled dot-product attention per document; for every device, dtype and mask."""

    def __init__(self, segments: Sequence[Segment], spans_N: Tensor | None) -> None:
        self._segments, self._lengths = segments, [segment.length for segment in segments]
        self._spans = [None] * len(segments) if spans_N is None else spans_N.split(self._lengths)

    def attend(self, q_NHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, mask: Mask) -> Tensor:
        # One split and one cat: slices would each add a full-size gradient in the backward pass.
        q_s, k_s, v_s = (x.split(self._lengths) for x in (q_NHC, k_NKC, v_NKC))
        outputs = [
            masked_attention(q[None], k[None], v[None], mask, spans)[0] if segment.is_document else torch.zeros_like(q)
            for segment, q, k, v, spans in zip(self._segments, q_s, k_s, v_s, self._spans, strict=True)
        ]
        return torch.cat(outputs)

    def attend_at(self, queries: Queries, q_QHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, mask: Mask) -> Tensor:
        q_s = q_QHC.split([len(places) for places in queries.places])
        k_s, v_s = (x.split(self._lengths) for x in (k_NKC, v_NKC))
        outputs = [
            masked_attention_at(places, q[None], k[None], v[None], mask, spans)[0]
            if segment.is_document
            else torch.zeros_like(q)
            for segment, places, q, k, v, spans in zip(
                self._segments, queries.places, q_s, k_s, v_s, self._spans, strict=True
            )
            if len(places)
        ]
        return torch.cat(outputs)


class AttentionPerShape(AttentionPerDocument):
    """One call for all documents of equal length whose queries are at equal places, such as answers cut at the token limit.

    Small models save the time of calls. Operands are copied, so that large ones save nothing.
    """

    def attend_at(self, queries: Queries, q_QHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, mask: Mask) -> Tensor:
        if any(spans is not None for spans in self._spans):
            return super().attend_at(queries, q_QHC, k_NKC, v_NKC, mask)
        q_s = q_QHC.split([len(places) for places in queries.places])
        k_s, v_s = (x.split(self._lengths) for x in (k_NKC, v_NKC))
        outputs = [
            torch.zeros_like(q) if not segment.is_document else q for segment, q in zip(self._segments, q_s, strict=True)
        ]
        for same in queries.same_shape:
            q, k, v = (torch.stack([x[index] for index in same]) for x in (q_s, k_s, v_s))
            o = masked_attention_at(queries.places[same[0]], q, k, v, mask)
            for index, o_QHC in zip(same, o.unbind(), strict=True):
                outputs[index] = o_QHC
        return torch.cat(outputs)


class FlashAttention(DocumentAttention):
    """One call of torch's flash kernel for all documents.

    The kernel computes in 16 bits, and has no mask for spans: other calls go to `per_document`. Some queries alone are
    computed in the places of all, whose outputs are discarded, because the kernel takes only the last positions of a
    document as queries.
    """

    def __init__(
        self, segments: Sequence[Segment], per_document: DocumentAttention, device: torch.device, *, has_spans: bool
    ) -> None:
        self._per_document, self._has_spans = per_document, has_spans
        lengths = [segment.length for segment in segments]
        self._longest = max(lengths)
        self._starts = to_device(np.array([0, *accumulate(lengths)], dtype=np.int32), device)
        self._padding_N11: Tensor | None = None
        if not all(segment.is_document for segment in segments):
            is_padding = np.repeat([not segment.is_document for segment in segments], lengths)
            self._padding_N11 = to_device(is_padding[:, None, None], device)

    def attend(self, q_NHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, mask: Mask) -> Tensor:
        window = self._window(q_NHC, mask)
        if window is None:
            return self._per_document.attend(q_NHC, k_NKC, v_NKC, mask)
        return self._flash(q_NHC, k_NKC, v_NKC, window)

    def attend_at(self, queries: Queries, q_QHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, mask: Mask) -> Tensor:
        window = self._window(q_QHC, mask)
        if window is None:
            return self._per_document.attend_at(queries, q_QHC, k_NKC, v_NKC, mask)
        q_NHC = q_QHC.new_zeros(len(k_NKC), *q_QHC.shape[1:]).index_copy(0, queries.indices_Q, q_QHC)
        return self._flash(q_NHC, k_NKC, v_NKC, window)[queries.indices_Q]

    def _window(self, q: Tensor, mask: Mask) -> tuple[int, int] | None:
        """Return how many keys a query sees to its left and right, -1 for all; None if the kernel cannot compute this."""
        if q.dtype not in FLASH_DTYPES:
            return None
        match mask:
            case BidirectionalMask():
                return (-1, -1)
            case CausalMask(window) | PrefixMask(window) if isinstance(mask, CausalMask) or not self._has_spans:
                return (-1 if window is None else window - 1, 0)
        return None

    def _flash(self, q_NHC: Tensor, k_NKC: Tensor, v_NKC: Tensor, window: tuple[int, int]) -> Tensor:
        from torch.nn.attention import varlen  # imports torch._dynamo, which takes seconds

        kernel: Any = varlen.varlen_attn
        o_NHC = kernel(
            q_NHC,
            k_NKC.to(q_NHC.dtype),
            v_NKC.to(q_NHC.dtype),
            self._starts,
            self._starts,
            self._longest,
            self._longest,
            window_size=window,
            **_grouped(kernel),
        )
        assert isinstance(o_NHC, Tensor)
        return o_NHC if self._padding_N11 is None else o_NHC.masked_fill(self._padding_N11, 0)


@cache
def _grouped(kernel: Callable[..., Any]) -> dict[str, bool]:
    """Return the argument that allows fewer key/value heads; before torch 2.12 the kernel takes them without one."""
    return {"enable_gqa": True} if "enable_gqa" in signature(kernel).parameters else {}
