"""Cross entropy of a large vocabulary in chunks, with the gradient computed in the forward pass.

The projection to the vocabulary and the softmax are one function. The logits of a chunk become their gradient in place and
are used at once, so no tensor of size [N, V] is stored and nothing is computed twice.

Shapes: N positions, C positions of a chunk, R of a block, D model dim, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""Logits of a chunk in fp32, 16 MiB, which fit the last-level cache; 16-bit chunks have the same bytes."""
BLOCK_ELEMENTS = 1 << 17
"""Logits of a softmax on a CPU: 512 KiB in fp32, so that all passes over them stay in the cache of a core."""
BLOCK_DEVICES = {"cpu"}
"""Types of devices with such blocks. Traces of a step remove the type that stands for a GPU."""


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
        dweight_VD = torch.empty_like(weight_VD) if with_gradient else None
        elements = CHUNK_ELEMENTS * weight_VD.itemsize // x_ND.itemsize
        chunk = min(max(256, elements // len(weight_VD)), len(x_ND))
        buffer_CV = x_ND.new_empty(chunk, len(weight_VD))  # reused by all chunks: new memory costs a page fault every 4 KiB
        product_VD = torch.empty_like(cast_VD) if with_gradient and cast_VD.dtype != weight_VD.dtype else None
        for start in range(0, len(x_ND), chunk):
            x_CD, targets_C1 = x_ND[start : start + chunk], targets_N[start : start + chunk, None]
            logits_CV = torch.mm(x_CD, cast_VD.T, out=buffer_CV[: len(x_CD)])
            loss += _differentiate_(logits_CV, targets_C1)
            if dx_ND is None or dweight_VD is None:
                continue
            torch.mm(logits_CV, cast_VD, out=dx_ND[start : start + chunk])
            if logits_CV.dtype == dweight_VD.dtype:
                torch.addmm(dweight_VD, logits_CV.T, x_CD, beta=int(start > 0), out=dweight_VD)  # with beta 0 only written
            else:
                product = torch.mm(logits_CV.T, x_CD, out=product_VD)
                dweight_VD.add_(product) if start else dweight_VD.copy_(product)
        ctx.save_for_backward(dx_ND, dweight_VD)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dlosses: Tensor) -> tuple[Tensor, Tensor, None]:
        (dloss,) = dlosses
        dx_ND, dweight_VD = ctx.saved_tensors
        return dx_ND.mul_(dloss), dweight_VD.mul_(dloss), None  # in place: nothing else holds these large tensors


def _differentiate_(logits_CV: Tensor, targets_C1: Tensor) -> Tensor:
    """Replace logits by the gradient of the loss in place; return the sum of the targets' negative log probabilities."""
    in_blocks = logits_CV.device.type in BLOCK_DEVICES
    rows = max(4, BLOCK_ELEMENTS // logits_CV.shape[1]) if in_blocks else len(logits_CV)
    loss = logits_CV.new_zeros((), dtype=torch.float32)
    for logits_RV, targets_R1 in zip(logits_CV.split(rows), targets_C1.split(rows), strict=True):
        wide_RV = logits_RV.float()
        loss += wide_RV.amax(1).sum() - wide_RV.gather(1, targets_R1).sum()
        gradient_RV = torch.softmax(wide_RV, 1, out=wide_RV if in_blocks else None)
        loss -= (
            gradient_RV.amax(1).log_().sum()
        )  # the largest probability gives the sum of exponentials without a pass of its own
        # Rounded to 16 bits before the subtraction, the gradient of a probability close to 1 would be 0.
        gradient_RV.scatter_add_(1, targets_R1, gradient_RV.new_full((), -1.0).expand_as(targets_R1))
        if gradient_RV is not logits_RV:
            logits_RV.copy_(gradient_RV)
    return loss
