"""Cross entropy of a large vocabulary in chunks, with the gradient computed in the forward pass.

The projection to the vocabulary and the softmax are one function. The logits of a chunk become their gradient in place and
are used at once, so no tensor of size [N, V] is stored and nothing is computed twice.

Shapes: N positions, C positions of a chunk, D model dim, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""Logits of a chunk: 16 MiB in fp32, which fits the last-level cache."""


def cross_entropy_sum(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Return the sum over positions of -log softmax(x W^T)[target], a scalar in fp32.

    The product runs in the dtype of x, the softmax in fp32. The weight and its gradient are fp32.
    """
    loss: Tensor = _CrossEntropySum.apply(x_ND, weight_VD, targets_N)
    return loss


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
        with_gradient = any(ctx.needs_input_grad)
        cast_VD = weight_VD.to(x_ND.dtype)
        loss = x_ND.new_zeros((), dtype=torch.float32)
        dx_ND = torch.empty_like(x_ND) if with_gradient else None
        dweight_VD = torch.zeros_like(weight_VD) if with_gradient else None
        chunk = min(max(256, CHUNK_ELEMENTS // len(weight_VD)), len(x_ND))
        buffer_CV = x_ND.new_empty(chunk, len(weight_VD))  # reused by all chunks: new memory costs a page fault every 4 KiB
        for start in range(0, len(x_ND), chunk):
            x_CD, targets_C1 = x_ND[start : start + chunk], targets_N[start : start + chunk, None]
            logits_CV = torch.mm(x_CD, cast_VD.T, out=buffer_CV[: len(x_CD)]).float()
            loss += _softmax_(logits_CV, targets_C1)
            if dx_ND is None or dweight_VD is None:
                continue
            dlogits_CV = logits_CV.scatter_add_(1, targets_C1, logits_CV.new_full((), -1.0).expand_as(targets_C1))
            dlogits_CV = dlogits_CV.to(x_ND.dtype)
            torch.mm(dlogits_CV, cast_VD, out=dx_ND[start : start + chunk])
            if dlogits_CV.dtype == dweight_VD.dtype:
                dweight_VD.addmm_(dlogits_CV.T, x_CD)
            else:
                dweight_VD += dlogits_CV.T @ x_CD
        ctx.save_for_backward(dx_ND, dweight_VD)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dlosses: Tensor) -> tuple[Tensor, Tensor, None]:
        (dloss,) = dlosses
        dx_ND, dweight_VD = ctx.saved_tensors
        return dx_ND.mul_(dloss), dweight_VD.mul_(dloss), None  # in place: nothing else holds these large tensors


def _softmax_(logits_CV: Tensor, targets_C1: Tensor) -> Tensor:
    """Replace logits by probabilities in place; return the sum of the targets' negative log probabilities."""
    logits_CV -= logits_CV.amax(dim=1, keepdim=True)
    target_logits_C1 = logits_CV.gather(1, targets_C1)
    sums_C1 = logits_CV.exp_().sum(dim=1, keepdim=True)
    logits_CV /= sums_C1
    return (sums_C1.log() - target_logits_C1).sum()
