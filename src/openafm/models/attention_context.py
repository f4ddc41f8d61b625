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
from openafm.models.position_embedding import PositionEmbedding
from openafm.models.spans import Span as Span

LOCAL_BLOCK = 64  # positions that a block of local attention has at least: fewer are too little work for one call


class AttentionContext(ABC):
    """The positions of one forward pass and the keys and values its layers have stored so far."""

    def __init__(self, positions_BS: Tensor) -> None:
        self.positions_BS = positions_BS
        self._position_embeddings: dict[tuple[PositionConfig, int], PositionEmbedding] = {}

    def position_embedding(self, config: PositionConfig, head_dim: int) -> PositionEmbedding:
        """The position embedding of this batch, made on first use and shared by every layer."""
        key = (config, head_dim)
        if key not in self._position_embeddings:
            self._position_embeddings[key] = config.build(self.positions_BS, head_dim)
        return self._position_embeddings[key]

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


class BatchContext(AttentionContext):
    """A batch without a past: documents in rows, and the keys and values its layers store during one forward pass."""

    def __init__(self, documents: Sequence[Span], positions_BS: Tensor) -> None:
        super().__init__(positions_BS)
        self._documents = tuple(documents)
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        self._stored[layer] = (k_BSKC, v_BSKC)

    def narrow(self, indices_N: Tensor) -> AttentionContext:
        """A context in which only these positions are queries [1, N, H, C]; the layers it passes store nothing.

        `indices_N` point into the flattened batch, ascend, and lie in documents. Exact: each sees what it saw before. So
        positions whose output nobody reads stop at the last keys and values that are stored, in prefill (only the last of a
        document matters) and in training (only those that carry loss).
        """
        return _Narrowed(self._stored, _pieces(self._documents, *self.positions_BS.shape), self.positions_BS, indices_N)

    def last(self) -> LastPositions:
        row_length = self.positions_BS.shape[1]
        indices = [document.row * row_length + document.stop - 1 for document in self._documents]
        indices_D = torch.tensor(indices, device=self.positions_BS.device)
        return LastPositions(indices_D=indices_D, context=self.narrow(indices_D))


class WholeRows(BatchContext):
    """Every row of the batch is one document: a single attention call for all of them."""

    def __init__(self, num_rows: int, row_length: int, device: torch.device | None = None) -> None:
        rows = [Span(row=row, start=0, stop=row_length) for row in range(num_rows)]
        super().__init__(rows, torch.arange(row_length, device=device).expand(num_rows, row_length))

    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        return causal_attention(q_BSHC, *self._stored[layer], window)


class PackedDocuments(BatchContext):
    """Rows hold several documents that never see each other: one attention call per document.

    On a CPU this is several times faster than one call with a block mask. Positions count from 0 in each document; padding
    belongs to no document, gets position 0 and an output of zeros. Documents are disjoint and in row-major order.
    """

    def __init__(
        self, documents: Sequence[Span], num_rows: int, row_length: int, device: torch.device | None = None
    ) -> None:
        self._pieces = _pieces(documents, num_rows, row_length)
        positions = [torch.arange(piece.length) * piece.is_document for piece in self._pieces]
        super().__init__(documents, torch.cat(positions).view(num_rows, row_length).to(device))

    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        lengths = [piece.length for piece in self._pieces]
        # One split and one cat: slices would each add a full-size gradient in the backward pass.
        q_s, k_s, v_s = (x.flatten(0, 1).split(lengths) for x in (q_BSHC, *self._stored[layer]))
        outputs = [
            causal_attention(q[None], k[None], v[None], window)[0] if piece.is_document else torch.zeros_like(q)
            for piece, q, k, v in zip(self._pieces, q_s, k_s, v_s, strict=True)
        ]
        return torch.cat(outputs).view_as(q_BSHC)


class _Narrowed(AttentionContext):
    """Some positions of a batch as the only queries [1, N, H, C], over keys and values that earlier layers have stored."""

    def __init__(
        self, stored: dict[int, tuple[Tensor, Tensor]], pieces: Sequence[_Piece], positions_BS: Tensor, indices_N: Tensor
    ) -> None:
        super().__init__(positions_BS.flatten()[indices_N][None])
        self._stored, self._lengths = stored, [piece.length for piece in pieces]
        stops = torch.tensor(self._lengths).cumsum(0)
        ends = torch.searchsorted(indices_N, (stops - 1).to(indices_N.device), right=True).cpu()
        self._num_queries: list[int] = ends.diff(prepend=ends.new_zeros(1)).tolist()
        self._places_s = [places.cpu() for places in self.positions_BS[0].split(self._num_queries)]

    def store(self, layer: int, k_BSKC: Tensor, v_BSKC: Tensor) -> None:
        raise AssertionError(f"layer {layer} stores keys and values but was built to be skipped")

    def attend(self, layer: int, q_BSHC: Tensor, window: int | None) -> Tensor:
        q_s = q_BSHC[0].split(self._num_queries)
        k_s, v_s = (x.flatten(0, 1).split(self._lengths) for x in self._stored[layer])
        outputs = [
            _attention_at(places, q[None], k[None], v[None], window)[0]
            for places, q, k, v in zip(self._places_s, q_s, k_s, v_s, strict=True)
            if len(places)
        ]
        return torch.cat(outputs)[None]

    def last(self) -> LastPositions:
        raise AssertionError("already narrowed to some positions")


def _attention_at(places_Q: Tensor, q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, window: int | None) -> Tensor:
    """Attention of the queries at these ascending places of one document. Returns o_BQHC."""
    first, last = int(places_Q[0]), int(places_Q[-1])
    start = 0 if window is None else max(0, first - window + 1)
    k_BLKC, v_BLKC = k_BLKC[:, start : last + 1], v_BLKC[:, start : last + 1]
    if last - first + 1 == len(places_Q):
        return causal_attention(q_BQHC, k_BLKC, v_BLKC, window)
    ages_QL = (places_Q - start)[:, None] - torch.arange(k_BLKC.shape[1])
    return _attention(q_BQHC, k_BLKC, v_BLKC, _visible(ages_QL, window).to(q_BQHC.device), is_causal=False)


def causal_attention(q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, window: int | None) -> Tensor:
    """Attention of the last Q of L positions, each to itself and what precedes it within `window`. Returns o_BQHC."""
    num_queries, num_keys = q_BQHC.shape[1], k_BLKC.shape[1]
    windowed = window is not None and window < num_keys
    if not windowed and num_queries in (1, num_keys):
        return _attention(q_BQHC, k_BLKC, v_BLKC, None, is_causal=num_queries > 1)
    if window is not None and num_queries == num_keys > 2 * max(window, LOCAL_BLOCK):
        return _local_attention(q_BQHC, k_BLKC, v_BLKC, window)
    keys_L = torch.arange(num_keys, device=q_BQHC.device)
    ages_QL = keys_L[num_keys - num_queries :, None] - keys_L
    return _attention(q_BQHC, k_BLKC, v_BLKC, _visible(ages_QL, window), is_causal=False)


def _local_attention(q_BSHC: Tensor, k_BSKC: Tensor, v_BSKC: Tensor, window: int) -> Tensor:
    """Attention of all positions within `window` at a cost of S * window, not S^2. Returns o_BSHC.

    Positions are cut into blocks no shorter than the window, so a block sees its own keys and those of the block before it:
    blocks become rows of one batch under one mask. The first has none before it and is plain causal attention, but where it
    is longer than the window; what fills up the last one is seen by nobody.
    """
    batch, length = q_BSHC.shape[:2]
    size = max(window, LOCAL_BLOCK)
    padding = -length % size
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding)).unflatten(1, (-1, size)) for x in (q_BSHC, k_BSKC, v_BSKC))
    first = causal_attention(q[:, 0], k[:, 0], v[:, 0], window)
    k, v = (torch.cat((x[:, :-1], x[:, 1:]), dim=2).flatten(0, 1) for x in (k, v))
    places = torch.arange(2 * size, device=q.device)
    rest = _attention(q[:, 1:].flatten(0, 1), k, v, _visible(places[size:, None] - places, window), is_causal=False)
    return torch.cat((first, rest.unflatten(0, (batch, -1)).flatten(1, 2)), dim=1)[:, :length]


def _visible(ages_QL: Tensor, window: int | None) -> Tensor:
    """Which keys a query sees, by how many positions before it they stand."""
    visible_QL = ages_QL >= 0
    return visible_QL if window is None else visible_QL & (ages_QL < window)


def _attention(q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, mask_QL: Tensor | None, *, is_causal: bool) -> Tensor:
    q, k, v = (x.to(q_BQHC.dtype).transpose(1, 2) for x in (q_BQHC, k_BLKC, v_BLKC))
    if q.is_cpu and q.requires_grad and q.dtype is torch.bfloat16:
        # The backward pass of a CPU's fused attention takes twice as long in bf16 as in fp32.
        q, k, v = q.float(), k.float(), v.float()
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_QL, is_causal=is_causal, enable_gqa=True)
    return o.transpose(1, 2).to(q_BQHC.dtype)


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
