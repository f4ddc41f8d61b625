"""Scaled dot-product attention under a mask, with the cheapest kernel call for each mask.

Shapes: B batch, H heads, K key/value heads, C head dim, Q queries and L keys of a document.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.core.errors import UsageError
from openafm.models.attention.masks import BidirectionalMask, CausalMask, Mask, PrefixMask
from openafm.models.attention.short_attention import is_short, short_attention

BLOCKED_LENGTHS = range(384, 1025)
"""Lengths of documents for which training on a CPU uses `blocked_attention`, which is faster there (EPYC, torch 2.13)."""
LOCAL_BLOCK = 64  # smallest block of local attention; smaller blocks are dominated by the cost of a call


class UnsupportedMaskError(UsageError):
    """The attention context cannot apply this kind of mask."""


def masked_attention(q_BLHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, mask: Mask, spans_BL: Tensor | None = None) -> Tensor:
    """Return the attention of all positions of a document to each other, o_BLHC.

    `spans_BL` [B, L] or [L], on the CPU, holds the number of the span of each position, 0 outside of spans; `PrefixMask`
    reads it.

    Raises:
        UnsupportedMaskError: another kind of mask.
    """
    match mask:
        case PrefixMask() if spans_BL is not None and spans_BL.any():
            visible_BLL = _visible(mask.window, torch.arange(q_BLHC.shape[1]), k_BLKC.shape[1], spans_BL)
            return _attention(q_BLHC, k_BLKC, v_BLKC, visible_BLL.unsqueeze(-3).to(q_BLHC.device))
        case CausalMask() | PrefixMask():
            return causal_attention(q_BLHC, k_BLKC, v_BLKC, mask.window)
        case BidirectionalMask():
            return _attention(q_BLHC, k_BLKC, v_BLKC)
    raise unsupported(mask, "a batch", "CausalMask, PrefixMask, BidirectionalMask")


def masked_attention_at(
    places_Q: Tensor, q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, mask: Mask, spans_L: Tensor | None = None
) -> Tensor:
    """Return the attention of the queries at these ascending places of one document, o_BQHC.

    Raises:
        UnsupportedMaskError: another kind of mask.
    """
    match mask:
        case PrefixMask() if spans_L is not None and spans_L.any():
            visible_QL = _visible(mask.window, places_Q, k_BLKC.shape[1], spans_L)
            return _attention(q_BQHC, k_BLKC, v_BLKC, visible_QL.to(q_BQHC.device))
        case CausalMask() | PrefixMask():
            return _causal_attention_at(places_Q, q_BQHC, k_BLKC, v_BLKC, mask.window)
        case BidirectionalMask():
            return _attention(q_BQHC, k_BLKC, v_BLKC)
    raise unsupported(mask, "a batch", "CausalMask, PrefixMask, BidirectionalMask")


def causal_attention(q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, window: int | None) -> Tensor:
    """Return the attention of the last Q of L positions, each to itself and earlier positions within `window`, o_BQHC."""
    if (window is None or window >= k_BLKC.shape[1]) and is_short(q_BQHC, k_BLKC):
        return short_attention(q_BQHC, k_BLKC, v_BLKC)
    return _fused_causal_attention(q_BQHC, k_BLKC, v_BLKC, window)


def unsupported(mask: Mask, context: str, supported: str) -> UnsupportedMaskError:
    """Return the error of an attention context that cannot apply `mask`."""
    return UnsupportedMaskError(f"{context} cannot apply a {type(mask).__name__}; supported: {supported}")


def _fused_causal_attention(q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, window: int | None) -> Tensor:
    num_queries, num_keys = q_BQHC.shape[1], k_BLKC.shape[1]
    windowed = window is not None and window < num_keys
    if not windowed and num_queries in (1, num_keys):
        return _attention(q_BQHC, k_BLKC, v_BLKC, is_causal=num_queries > 1)
    if window is not None and num_queries == num_keys > 2 * max(window, LOCAL_BLOCK):
        return _local_attention(q_BQHC, k_BLKC, v_BLKC, window)
    places_Q = torch.arange(num_keys - num_queries, num_keys, device=q_BQHC.device)
    return _attention(q_BQHC, k_BLKC, v_BLKC, _visible(window, places_Q, num_keys))


def _causal_attention_at(places_Q: Tensor, q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, window: int | None) -> Tensor:
    first, last = int(places_Q[0]), int(places_Q[-1])
    start = 0 if window is None else max(0, first - window + 1)
    k_BLKC, v_BLKC = k_BLKC[:, start : last + 1], v_BLKC[:, start : last + 1]
    if last - first + 1 == len(places_Q):
        past = first - start
        if past and window is not None and len(places_Q) > 2 * max(window, LOCAL_BLOCK):
            # Local attention has a query for each key: those of the past are discarded.
            return causal_attention(F.pad(q_BQHC, (0, 0, 0, 0, past, 0)), k_BLKC, v_BLKC, window)[:, past:]
        return causal_attention(q_BQHC, k_BLKC, v_BLKC, window)
    visible_QL = _visible(window, places_Q - start, k_BLKC.shape[1])
    return _attention(q_BQHC, k_BLKC, v_BLKC, visible_QL.to(q_BQHC.device))


def _local_attention(q_BSHC: Tensor, k_BSKC: Tensor, v_BSKC: Tensor, window: int) -> Tensor:
    """Return the attention of all positions within `window`, o_BSHC, at a cost of S * window instead of S^2.

    Positions are cut into blocks no shorter than the window, so that a block sees its own keys and those of the block before
    it. Blocks become rows of one batch under one mask. The first block has no predecessor and is computed separately;
    padding at the end of the last block is visible to no query.
    """
    batch, length = q_BSHC.shape[:2]
    size = max(window, LOCAL_BLOCK)
    padding = -length % size
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding)).unflatten(1, (-1, size)) for x in (q_BSHC, k_BSKC, v_BSKC))
    first = _fused_causal_attention(q[:, 0], k[:, 0], v[:, 0], window)
    k, v = (torch.cat((x[:, :-1], x[:, 1:]), dim=2).flatten(0, 1) for x in (k, v))
    places_Q = torch.arange(size, 2 * size, device=q.device)
    rest = _attention(q[:, 1:].flatten(0, 1), k, v, _visible(window, places_Q, 2 * size))
    return torch.cat((first, rest.unflatten(0, (batch, -1)).flatten(1, 2)), dim=1)[:, :length]


def _visible(window: int | None, places_Q: Tensor, num_keys: int, spans_L: Tensor | None = None) -> Tensor:
    """Return True where the query at a place sees a key, [Q, L], or [B, Q, L] for spans_BL."""
    ages_QL = places_Q[:, None] - torch.arange(num_keys, device=places_Q.device)
    visible_QL = ages_QL >= 0
    if window is not None:
        visible_QL &= ages_QL < window
    if spans_L is None:
        return visible_QL
    spans_Q = spans_L[..., places_Q]
    return visible_QL | (spans_Q[..., :, None] == spans_L[..., None, :]) & (spans_Q[..., :, None] > 0)


def _attention(
    q_BQHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, mask_QL: Tensor | None = None, *, is_causal: bool = False
) -> Tensor:
    q, k, v = (x.to(q_BQHC.dtype) for x in (q_BQHC, k_BLKC, v_BLKC))
    if q.is_cpu and q.requires_grad and q.dtype is torch.bfloat16:
        # On a CPU the backward pass of fused attention takes twice as long in bf16 as in fp32.
        q, k, v = q.float(), k.float(), v.float()
    if is_causal and q.is_cpu and q.requires_grad and q.dtype is torch.float32 and q.shape[1] in BLOCKED_LENGTHS:
        from openafm.models.attention.blocked_attention import blocked_attention  # its operations are only for training

        return blocked_attention(q, k, v).to(q_BQHC.dtype)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_QL, is_causal=is_causal, enable_gqa=True)
    return o.transpose(1, 2).to(q_BQHC.dtype)
