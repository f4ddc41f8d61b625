"""Attention of a part of the positions of packed rows, whose keys begin earlier than its queries.

Shapes: N queries and M keys of the flattened rows, Q and L those of a piece, H heads, K key/value heads, C head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.models.attention import document_attention
from openafm.models.attention.masked_attention import causal_attention, unsupported
from openafm.models.attention.masks import CausalMask, Mask
from openafm.models.attention.spans import Span
from openafm.models.transfer import to_device


@dataclass(frozen=True)
class Piece:
    """The next queries and keys of the flattened rows; in a document the queries are the last of the keys' positions.

    Other pieces are padding, whose outputs are zeros, or keys that no query sees.
    """

    queries: int
    keys: int
    is_document: bool


def pieces_of(documents: Sequence[Span], num_rows: int, queries: range, keys: range) -> list[Piece]:
    """Return the pieces of all rows, of which the positions `queries` and `keys` are present; the documents are whole."""
    of_rows: list[list[Span]] = [[] for _ in range(num_rows)]
    for document in documents:
        if document.start < queries.stop and document.stop > queries.start:
            of_rows[document.row].append(document)
    return [piece for of_row in of_rows for piece in _pieces_of_row(of_row, queries, keys)]


def _pieces_of_row(documents: Sequence[Span], queries: range, keys: range) -> Iterator[Piece]:
    query, key = queries.start, keys.start
    for document in documents:
        first_query, first_key = max(document.start, queries.start), max(document.start, keys.start)
        stop = min(document.stop, queries.stop)
        if first_key > key:
            yield Piece(first_query - query, first_key - key, False)
        yield Piece(stop - first_query, stop - first_key, True)
        query = key = stop
    if keys.stop > key:
        yield Piece(queries.stop - query, keys.stop - key, False)


class PartAttention(ABC):
    """Attention of the queries of pieces to their keys, under a causal mask."""

    @abstractmethod
    def attend(self, q_NHC: Tensor, k_MKC: Tensor, v_MKC: Tensor, mask: Mask) -> Tensor:
        """Return the attention, o_NHC.

        Raises:
            UnsupportedMaskError: another mask than a causal one.
        """


def part_attention(pieces: Sequence[Piece], device: torch.device, dtype: torch.dtype) -> PartAttention:
    """Return the backend for a device and a dtype of queries."""
    if device.type in document_attention.FLASH_DEVICES and dtype in document_attention.FLASH_DTYPES:
        return FlashPartAttention(pieces, device)
    return AttentionPerPiece(pieces)


class AttentionPerPiece(PartAttention):
    """One or two calls of scaled dot-product attention per piece; for every device and dtype."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces

    def attend(self, q_NHC: Tensor, k_MKC: Tensor, v_MKC: Tensor, mask: Mask) -> Tensor:
        window = _window(mask)
        q_s = q_NHC.split([piece.queries for piece in self._pieces])
        k_s, v_s = (x.split([piece.keys for piece in self._pieces]) for x in (k_MKC, v_MKC))
        outputs = [
            last_positions_attention(q[None], k[None], v[None], window)[0] if piece.is_document else torch.zeros_like(q)
            for piece, q, k, v in zip(self._pieces, q_s, k_s, v_s, strict=True)
        ]
        return torch.cat(outputs)


class FlashPartAttention(PartAttention):
    """One call of torch's flash kernel, in which the queries of a piece are the last of its positions."""

    def __init__(self, pieces: Sequence[Piece], device: torch.device) -> None:
        queries, keys = [piece.queries for piece in pieces], [piece.keys for piece in pieces]
        self._longest = max(queries), max(keys)
        self._starts_q, self._starts_k = (
            to_device(np.array([0, *accumulate(lengths)], dtype=np.int32), device) for lengths in (queries, keys)
        )
        is_padding = np.repeat([not piece.is_document for piece in pieces], queries)
        self._padding_N11 = to_device(is_padding[:, None, None], device) if is_padding.any() else None

    def attend(self, q_NHC: Tensor, k_MKC: Tensor, v_MKC: Tensor, mask: Mask) -> Tensor:
        from torch.nn.attention import varlen  # imports torch._dynamo, which takes seconds

        window = _window(mask)
        o_NHC = varlen.varlen_attn(
            q_NHC,
            k_MKC.to(q_NHC.dtype),
            v_MKC.to(q_NHC.dtype),
            self._starts_q,
            self._starts_k,
            *self._longest,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=True,
        )
        assert isinstance(o_NHC, Tensor)
        return o_NHC if self._padding_N11 is None else o_NHC.masked_fill(self._padding_N11, 0)


def _window(mask: Mask) -> int | None:
    if not isinstance(mask, CausalMask):
        raise unsupported(mask, "a part of the positions of rows", "CausalMask")
    return mask.window


def last_positions_attention(q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, window: int | None) -> Tensor:
    """Return the attention of the last Q of L positions, as `causal_attention`, without a mask [Q, L] for many queries."""
    num_queries = q_BQHC.shape[1]
    if window is not None:
        k_BLKC, v_BLKC = (x[:, -(num_queries + window - 1) :] for x in (k_BLKC, v_BLKC))
    past = k_BLKC.shape[1] - num_queries
    if past and window is not None and num_queries > window:  # queries in the places of the past, to be discarded
        q_BLHC = F.pad(q_BQHC, (0, 0, 0, 0, past, 0))
        return causal_attention(q_BLHC, k_BLKC, v_BLKC, window)[:, past:]
    sees_all_past = window is None or window >= k_BLKC.shape[1]
    if past == 0 or not sees_all_past or not q_BQHC.is_cpu:
        return causal_attention(q_BQHC, k_BLKC, v_BLKC, window)
    q, k, v = (x.float().transpose(1, 2) for x in (q_BQHC, k_BLKC, v_BLKC))
    o_BHQC: Tensor = _AttentionWithPast.apply(q, k, v, past)
    return o_BHQC.transpose(1, 2).to(q_BQHC.dtype)


class _AttentionWithPast(torch.autograd.Function):
    """Causal attention on a CPU, of queries that follow `past` positions.

    Two calls, one for the keys of the past and one for the keys of the queries' own positions; their outputs are weighted
    by their shares of the softmax. The backward pass of a call with the output and the logsumexp of both is its part of the
    gradient.
    """

    @staticmethod
    def forward(ctx: Any, q_BHQC: Tensor, k_BKLC: Tensor, v_BKLC: Tensor, past: int) -> Tensor:
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        past_o, past_sum = attend(q_BHQC, k_BKLC[:, :, :past], v_BKLC[:, :, :past])
        own_o, own_sum = attend(q_BHQC, k_BKLC[:, :, past:], v_BKLC[:, :, past:], is_causal=True)
        sum_BHQ = torch.logaddexp(past_sum, own_sum)
        o_BHQC = past_o * (past_sum - sum_BHQ).exp()[..., None] + own_o * (own_sum - sum_BHQ).exp()[..., None]
        ctx.past = past
        ctx.save_for_backward(q_BHQC, k_BKLC, v_BKLC, o_BHQC, sum_BHQ)
        return o_BHQC

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dos: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, o, sum_BHQ = ctx.saved_tensors
        differentiate = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        past = ctx.past
        dq_past, dk_past, dv_past = differentiate(
            dos[0], q, k[:, :, :past], v[:, :, :past], o, sum_BHQ, 0.0, is_causal=False
        )
        dq_own, dk_own, dv_own = differentiate(dos[0], q, k[:, :, past:], v[:, :, past:], o, sum_BHQ, 0.0, is_causal=True)
        return dq_past + dq_own, torch.cat((dk_past, dk_own), 2), torch.cat((dv_past, dv_own), 2), None
