"""What a query may see: the seam between attention and everything around it.

A layer stores keys and values in the context under its index and attends to those of any stored layer. Sharing keys and
values across layers, packed documents, caches of a running engine and skipping positions nobody asks for are all contexts;
the attention module knows none of them.

Shapes: B batch, S sequence, N = B * S positions, H heads, K key/value heads, C head dim, Q queries and L keys of a document.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.models.config import PositionConfig
from openafm.models.rotary import Rotation


class AttentionContext(ABC):
    """The positions of one forward pass and the keys and values its layers have stored so far."""

    def __init__(self, positions_BS: Tensor) -> None:
        self.positions_BS = positions_BS
        self._rotations: dict[tuple[PositionConfig, int], Rotation] = {}

    def rotation(self, config: PositionConfig, head_dim: int) -> Rotation:
        """The position embedding of this batch, made on first use and shared by every layer."""
        key = (config, head_dim)
        if key not in self._rotations:
            self._rotations[key] = config.build(self.positions_BS, head_dim)
        return self._rotations[key]

    @abstractmethod
    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        """Keep the keys and values of this batch's positions for `layer`."""

    @abstractmethod
    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        """Causal attention of the queries to what `layer` stored, each document by itself. Returns o_BSHC."""

    @abstractmethod
    def last(self) -> LastPositions:
        """Only the last position of every document, seeing all that has been stored: the prefill bypass (report 2.1)."""


@dataclass(frozen=True, kw_only=True)
class LastPositions:
    """Where the last positions stand in the flattened batch, and a context in which they are the only queries [1, D]."""

    indices_D: Tensor
    context: AttentionContext


@dataclass(frozen=True, kw_only=True)
class Span:
    """A document: positions start..stop of a batch row."""

    row: int
    start: int
    stop: int


class WholeRows(AttentionContext):
    """Every row of the batch is one document: a single attention call for all of them."""

    def __init__(self, num_rows: int, row_length: int, device: torch.device | None = None) -> None:
        super().__init__(torch.arange(row_length, device=device).expand(num_rows, row_length))
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        self._stored[layer] = (k_BSKC, v_BSKC)

    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        return causal_attention(q_BSHC, *self._stored[layer], window)

    def last(self) -> LastPositions:
        num_rows, row_length = self.positions_BS.shape
        rows = torch.arange(num_rows, device=self.positions_BS.device)
        spans = tuple(Span(row=row, start=0, stop=row_length) for row in range(num_rows))
        return LastPositions(
            indices_D=rows * row_length + row_length - 1, context=_LastOfEach(self._stored, spans, self.positions_BS)
        )


class PackedDocuments(AttentionContext):
    """Rows hold several documents that never see each other: one attention call per document.

    On a CPU this is several times faster than one call with a block mask. Positions count from 0 in each document; padding
    belongs to no document, gets position 0 and an output of zeros.
    """

    def __init__(self, documents: Sequence[Span], num_rows: int, row_length: int) -> None:
        self._documents = tuple(documents)
        positions_BS = torch.zeros(num_rows, row_length, dtype=torch.long)
        for document in self._documents:
            positions_BS[document.row, document.start : document.stop] = torch.arange(document.stop - document.start)
        super().__init__(positions_BS)
        self._pieces = _pieces(self._documents, num_rows, row_length)
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        self._stored[layer] = (k_BSKC, v_BSKC)

    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        lengths = [piece.length for piece in self._pieces]
        # One split and one cat: slices would each add a full-size gradient in the backward pass.
        q_s, k_s, v_s = (x.flatten(0, 1).split(lengths) for x in (q_BSHC, *self._stored[layer]))
        outputs = [
            causal_attention(q[None], k[None], v[None], window)[0] if piece.is_document else torch.zeros_like(q)
            for piece, q, k, v in zip(self._pieces, q_s, k_s, v_s, strict=True)
        ]
        return torch.cat(outputs).view_as(q_BSHC)

    def last(self) -> LastPositions:
        row_length = self.positions_BS.shape[1]
        indices = [document.row * row_length + document.stop - 1 for document in self._documents]
        return LastPositions(
            indices_D=torch.tensor(indices), context=_LastOfEach(self._stored, self._documents, self.positions_BS)
        )


class _LastOfEach(AttentionContext):
    """One query per document [1, D, H, C], at its last position, over keys and values already stored."""

    def __init__(self, stored: dict[int, tuple[Tensor, Tensor]], documents: Sequence[Span], positions_BS: Tensor) -> None:
        super().__init__(torch.stack([positions_BS[d.row, d.stop - 1] for d in documents])[None])
        self._stored, self._documents = stored, documents

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        raise AssertionError(f"layer {layer} stores keys and values but was built to be skipped by the prompt")

    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        k_BSKC, v_BSKC = self._stored[layer]
        outputs = []
        for index, document in enumerate(self._documents):
            start = document.start if window is None else max(document.start, document.stop - window)
            keys, values = (x[document.row : document.row + 1, start : document.stop] for x in (k_BSKC, v_BSKC))
            outputs.append(causal_attention(q_BSHC[:, index : index + 1], keys, values, None))
        return torch.cat(outputs, dim=1)

    def last(self) -> LastPositions:
        raise AssertionError("already narrowed to the last positions")


def causal_attention(q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, window: int | None) -> Tensor:
    """Attention of the last Q of L positions, each to itself and what precedes it within `window`. Returns o_BQHC."""
    num_queries, num_keys = q_BQHC.shape[1], k_BLKC.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q_BQHC, k_BLKC, v_BLKC))
    windowed = window is not None and window < num_keys
    square = num_queries == num_keys
    mask_QL = None
    if windowed or not (square or num_queries == 1):
        mask_QL = _visible(num_queries, num_keys, window, q.device)
    o = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask_QL, is_causal=mask_QL is None and square and num_queries > 1, enable_gqa=True
    )
    return o.transpose(1, 2)


def _visible(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    ages_QL = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None] - torch.arange(num_keys, device=device)
    visible_QL = ages_QL >= 0
    return visible_QL if window is None else visible_QL & (ages_QL < window)


@dataclass(frozen=True)
class _Piece:
    length: int
    is_document: bool


def _pieces(documents: Sequence[Span], num_rows: int, row_length: int) -> list[_Piece]:
    """The flattened batch cut into documents and the padding between them, in order."""
    pieces: list[_Piece] = []
    done = 0
    for document in documents:
        start, stop = (document.row * row_length + at for at in (document.start, document.stop))
        if start > done:
            pieces.append(_Piece(start - done, False))
        pieces.append(_Piece(stop - start, True))
        done = stop
    if done < num_rows * row_length:
        pieces.append(_Piece(num_rows * row_length - done, False))
    return pieces
