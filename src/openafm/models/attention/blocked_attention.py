"""Causal attention of a document to itself on a CPU, in blocks of queries as large products of matrices.

At 384 to 1,024 positions forward and backward pass take 5 to 20 % less time than torch's fused kernel for CPUs, and save as
much for the backward pass: the operands, the output, and a number per query. It is an operation of torch, so that activation
checkpointing can keep its output (training/activation_checkpointing.py).

Shapes: B batch, L positions, H heads, K key/value heads, G = H / K, C head dim, N queries of a block, M keys that they see.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BLOCK = 64


def blocked_attention(q_BLHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor) -> Tensor:
    """Return the causal attention of all positions, o_BLHC, in fp32."""
    o_BLHC, _ = _attention(q_BLHC, k_BLKC, v_BLKC)
    return o_BLHC


@torch.library.custom_op("openafm::blocked_attention", mutates_args=())
def _attention(q_BLHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor) -> tuple[Tensor, Tensor]:
    num_kv_heads = k_BLKC.shape[2]
    q_XGLC, k_XLC, v_XLC = _by_group(q_BLHC, num_kv_heads) * q_BLHC.shape[3] ** -0.5, _by_head(k_BLKC), _by_head(v_BLKC)
    o_XGLC, sums_XGL1 = torch.empty_like(q_XGLC), q_XGLC.new_empty(*q_XGLC.shape[:3], 1)
    for start, stop in _blocks(q_BLHC):
        scores_XGNM = _scores(q_XGLC, k_XLC, start, stop)
        largest_XGN1 = scores_XGNM.amax(-1, keepdim=True)
        weights_XGNM = torch.softmax(scores_XGNM, -1, out=scores_XGNM)
        sums_XGL1[:, :, start:stop] = largest_XGN1 - weights_XGNM.amax(-1, keepdim=True).log_()
        o_XGLC[:, :, start:stop] = torch.bmm(weights_XGNM.flatten(1, 2), v_XLC[:, :stop]).unflatten(1, (-1, stop - start))
    return _by_position(o_XGLC, q_BLHC), sums_XGL1


@torch.library.custom_op("openafm::blocked_attention_backward", mutates_args=())
def _attention_backward(
    do_BLHC: Tensor, q_BLHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, o_BLHC: Tensor, sums_XGL1: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    num_kv_heads, scale = k_BLKC.shape[2], q_BLHC.shape[3] ** -0.5
    q_XGLC, k_XLC, v_XLC = _by_group(q_BLHC, num_kv_heads) * scale, _by_head(k_BLKC), _by_head(v_BLKC)
    do_XGLC = _by_group(do_BLHC, num_kv_heads)
    along_XGL1 = _by_group(do_BLHC * o_BLHC, num_kv_heads).sum(-1, keepdim=True)
    dq_XGLC, dk_XLC, dv_XLC = torch.empty_like(q_XGLC), torch.zeros_like(k_XLC), torch.zeros_like(v_XLC)
    for start, stop in _blocks(q_BLHC):
        weights_XGNM = _scores(q_XGLC, k_XLC, start, stop).sub_(sums_XGL1[:, :, start:stop]).exp_()
        do_XNC, q_XNC = (x[:, :, start:stop].flatten(1, 2) for x in (do_XGLC, q_XGLC))
        dv_XLC[:, :stop].baddbmm_(weights_XGNM.flatten(1, 2).mT, do_XNC)
        dscores_XGNM = torch.bmm(do_XNC, v_XLC[:, :stop].mT).view_as(weights_XGNM)
        dscores_XNM = dscores_XGNM.sub_(along_XGL1[:, :, start:stop]).mul_(weights_XGNM).flatten(1, 2)
        dq_XGLC[:, :, start:stop] = torch.bmm(dscores_XNM, k_XLC[:, :stop]).unflatten(1, (-1, stop - start))
        dk_XLC[:, :stop].baddbmm_(dscores_XNM.mT, q_XNC)
    dk_BLKC, dv_BLKC = (x.unflatten(0, (-1, num_kv_heads)).transpose(1, 2).contiguous() for x in (dk_XLC, dv_XLC))
    return _by_position(dq_XGLC.mul_(scale), q_BLHC), dk_BLKC, dv_BLKC


@_attention.register_fake
def _(q_BLHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor) -> tuple[Tensor, Tensor]:
    (batch, length, num_heads, _), num_kv_heads = q_BLHC.shape, k_BLKC.shape[2]
    sums = q_BLHC.new_empty(batch * num_kv_heads, num_heads // num_kv_heads, length, 1)
    return q_BLHC.new_empty(q_BLHC.shape), sums


@_attention_backward.register_fake
def _(
    do_BLHC: Tensor, q_BLHC: Tensor, k_BLKC: Tensor, v_BLKC: Tensor, o_BLHC: Tensor, sums_XGL1: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.new_empty(x.shape) for x in (q_BLHC, k_BLKC, v_BLKC))
    return q, k, v


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, do_BLHC: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = _attention_backward(do_BLHC, *ctx.saved_tensors)
    return gradients


_attention.register_autograd(_backward, setup_context=_setup_context)


def _blocks(q_BLHC: Tensor) -> Iterator[tuple[int, int]]:
    length = q_BLHC.shape[1]
    return ((start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))


def _scores(q_XGLC: Tensor, k_XLC: Tensor, start: int, stop: int) -> Tensor:
    """Return the scores of a block of queries, -inf for later keys."""
    scores_XNM = torch.bmm(q_XGLC[:, :, start:stop].flatten(1, 2), k_XLC[:, :stop].mT)
    scores_XGNM = scores_XNM.unflatten(1, (-1, stop - start))
    is_later_NN = torch.ones(stop - start, stop - start, dtype=torch.bool).triu_(1)
    scores_XGNM[..., start:].masked_fill_(is_later_NN, -torch.inf)
    return scores_XGNM


def _by_group(x_BLHC: Tensor, num_kv_heads: int) -> Tensor:
    """Return a copy [B * K, G, L, C]."""
    return x_BLHC.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1)


def _by_head(x_BLKC: Tensor) -> Tensor:
    """Return a copy [B * K, L, C]."""
    return x_BLKC.transpose(1, 2).flatten(0, 1)


def _by_position(x_XGLC: Tensor, like_BLHC: Tensor) -> Tensor:
    """Return [B, L, H, C]."""
    return x_XGLC.unflatten(0, (len(like_BLHC), -1)).permute(0, 3, 1, 2, 4).flatten(2, 3).contiguous()
