"""Bytes that autograd saves for the backward pass, by arithmetic. Imports no tensor library.

The counts follow the operations of `models/`; `tests/training/planning/test_footprint.py` compares them with the hooks of
autograd.

Letters: H heads and K key/value heads of a track, C head dim, L tokens of a document.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from openafm.models.attention.masks import CausalMask, Mask, PrefixMask

MASTER_BYTES = 4
"""Weights, their gradients, the optimizer's state and all norms are fp32 in every precision."""
INDEX_BYTES = 8
LOCAL_BLOCK = 64
"""As in models/attention/masked_attention.py, which imports torch."""
SHORT_POSITIONS = 383
"""As MAX_POSITIONS in models/attention/short_attention.py, which imports torch."""


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """What a device computes at once: `num_rows` rows of `row_tokens` tokens, full of documents of `document_tokens`.

    `number_bytes` is the width of the precision. `attention_bytes` is that of attention, which is fp32 on a CPU. A row has
    `row_images` images. With `parts` above 1 the tokens are one of that many parts of longer rows, of `chunks` chunks, whose
    keys and values come from other devices. `has_whole_softmax` is False where the softmax of the loss is computed in
    blocks, as on a CPU.
    """

    num_rows: int
    row_tokens: int
    document_tokens: int
    number_bytes: int
    attention_bytes: int
    row_images: int = 0
    parts: int = 1
    chunks: int = 1
    has_whole_softmax: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_rows * self.row_tokens

    def sends_window(self, window: int | None) -> bool:
        """Return True if a layer with this window needs the end of the chunk before each own one, and not whole rows."""
        return past_of_window(window, self.row_tokens // self.chunks) is not None

    @property
    def documents(self) -> tuple[int, ...]:
        """Lengths of the documents of all rows."""
        whole, rest = divmod(self.row_tokens, self.document_tokens)
        return self.num_rows * ((self.document_tokens,) * whole + ((rest,) if rest else ()))


def past_of_window(window: int | None, chunk_tokens: int) -> int | None:
    """Return how many positions before a chunk of a row a layer reads, all in the chunk before it; None for whole rows."""
    return None if window is None or window - 1 > chunk_tokens else window - 1


def past_tokens(window: int | None, batch: Microbatch) -> int:
    """Return how many positions of other parts of the rows a layer gets keys and values of."""
    if batch.parts == 1:
        return 0
    past = past_of_window(window, batch.row_tokens // batch.chunks)
    return batch.num_rows * ((batch.parts - 1) * batch.row_tokens if past is None else batch.chunks * past)


@dataclass(frozen=True, kw_only=True)
class ActivationBytes:
    """Bytes per position of a track: `saved` until the backward pass, `working` in addition during the backward pass."""

    saved: int
    working: int


def attention_bytes(
    mask: Mask,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    is_own: bool,
    has_norms: bool,
    tracks: int,
    batch: Microbatch,
) -> int:
    """Return the bytes that attention saves: normed queries and keys, the operands of the attention call, its output.

    `is_own` is False for a layer that reads keys and values which another layer has saved already.
    """
    queries, keys = num_heads * head_dim, num_kv_heads * head_dim
    per_position = batch.number_bytes * queries
    if has_norms:
        per_position += MASTER_BYTES * (queries + num_heads)
        per_position += MASTER_BYTES * (keys + num_kv_heads) * is_own
    is_causal = isinstance(mask, CausalMask | PrefixMask)
    window = mask.window if isinstance(mask, CausalMask | PrefixMask) else None
    is_widened = batch.attention_bytes != batch.number_bytes  # then every layer saves a copy of the keys and values it reads
    saved = tracks * batch.num_tokens * per_position
    if is_own or is_widened:
        saved += tracks * batch.attention_bytes * 2 * past_tokens(window, batch) * keys
    for length, times in Counter(batch.documents).items():
        if is_causal and is_widened and length <= SHORT_POSITIONS and not _cuts(window, length):
            weights = num_heads * length * length
            saved += times * tracks * batch.number_bytes * (length * (queries + 2 * keys) + weights)
            continue
        call = _saved_by_call(length, mask, is_widened)
        of_a_track = 2 * call.queries * queries + 2 * call.keys * keys * (is_own or is_widened)
        sums = MASTER_BYTES * call.queries * num_heads
        saved += times * (tracks * (batch.attention_bytes * of_a_track + sums) + batch.attention_bytes * call.mask)
    return saved


def _cuts(window: int | None, length: int) -> bool:
    """Return whether a window hides positions of a document."""
    return window is not None and window < length


@dataclass(frozen=True, kw_only=True)
class _AttentionCall:
    """Positions of queries and of keys that attention to one document saves, and numbers of its masks."""

    queries: int
    keys: int
    mask: int


def _saved_by_call(length: int, mask: Mask, is_widened: bool) -> _AttentionCall:
    """Count as models/attention/masked_attention.py computes: in one call, under a mask, or in blocks of local attention."""
    window = mask.window if isinstance(mask, CausalMask | PrefixMask) else None
    if window is None or not _cuts(window, length):
        return _AttentionCall(queries=length, keys=length, mask=0)
    size = max(window, LOCAL_BLOCK)
    if length <= 2 * size:
        return _AttentionCall(queries=length, keys=length, mask=length * length)
    padded = length + -length % size
    twice = 2 * (padded - size)  # each block but the first has a copy of its own keys and of those before it
    numbers = 2 * size * size + (size * size if window < size else 0)
    return _AttentionCall(queries=padded, keys=twice + (size if is_widened else padded), mask=numbers)
