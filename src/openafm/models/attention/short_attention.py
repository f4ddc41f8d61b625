"""Causal attention of a short document on a CPU, with its gradient, from batched products of matrices.

In bf16 torch's fused attention takes 2.7 times as long for 256 positions: its backward pass does not use the processor's
bf16 products well. Memory grows with the square of the length; longer documents are computed in blocks
(`blocked_attention`) or by the fused call.

Shapes: L positions, H heads, K key/value heads, C head dim, P the positions of all heads that share keys and values.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

MAX_POSITIONS = 383


def is_short(q_BLHC: Tensor, k_BLKC: Tensor) -> bool:
    """Return whether `short_attention` computes these queries and keys faster than fused attention."""
    if isinstance(q_BLHC, FakeTensor) or torch.compiler.is_compiling():  # they follow the calls of fused attention
        return False
    is_trained = q_BLHC.is_cpu and q_BLHC.requires_grad and q_BLHC.dtype is torch.bfloat16
    return is_trained and q_BLHC.shape[1] == k_BLKC.shape[1] <= MAX_POSITIONS


def short_attention(q_BLHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor) -> Tensor:
    """Return the causal attention of all positions, o_BLHC, in the dtype of the queries."""
    batch, length, num_heads, head_dim = q_BLHC.shape
    num_kv_heads = k_BLKC.shape[2]
    # Copies, not views: a view would keep all documents of the batch for the backward pass.
    copies = (
        x.to(q_BLHC.dtype).transpose(1, 2).clone(memory_format=torch.contiguous_format) for x in (q_BLHC, k_BLKC, v_BLKC)
    )
    q_XPC, k_XLC, v_XLC = (x.view(batch * num_kv_heads, -1, head_dim) for x in copies)
    o_XPC = cast("Tensor", _ShortAttention.apply(q_XPC, k_XLC, v_XLC))
    return o_XPC.view(batch, num_heads, length, head_dim).transpose(1, 2)


class _ShortAttention(torch.autograd.Function):
    """Attention of the rows of a batch X: the key/value heads of each document."""

    @staticmethod
    def forward(ctx: Any, q_XPC: Tensor, k_XLC: Tensor, v_XLC: Tensor) -> Tensor:
        num_groups = q_XPC.shape[1] // k_XLC.shape[1]
        mask_PL = _mask(k_XLC.shape[1], num_groups, q_XPC.dtype)
        weights_XPL = torch.baddbmm(mask_PL, q_XPC, k_XLC.mT, alpha=_scale(q_XPC)).softmax(-1)
        ctx.save_for_backward(q_XPC, k_XLC, v_XLC, weights_XPL)
        return weights_XPL @ v_XLC

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_XPC, k_XLC, v_XLC, weights_XPL = ctx.saved_tensors
        (do_XPC,) = gradients
        dweights_XPL = do_XPC @ v_XLC.mT
        dscores_XPL = torch._softmax_backward_data(dweights_XPL, weights_XPL, -1, weights_XPL.dtype)
        scale = _scale(q_XPC)
        return (dscores_XPL @ k_XLC).mul_(scale), (dscores_XPL.mT @ q_XPC).mul_(scale), weights_XPL.mT @ do_XPC


def _scale(q_XPC: Tensor) -> float:
    return float(q_XPC.shape[-1] ** -0.5)


@functools.lru_cache(maxsize=64)  # the lengths of a row, for all layers; masks of all lengths take 38 MB a head of a group
def _mask(length: int, num_groups: int, dtype: torch.dtype) -> Tensor:
    """Return 0 for visible and -inf for later positions, once for each head of a group."""
    with torch.inference_mode(False), torch.device("cpu"):
        return torch.full((length, length), float("-inf"), dtype=dtype).triu(1).repeat(num_groups, 1)
