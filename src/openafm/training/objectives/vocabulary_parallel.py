"""Cross entropy whose vocabulary the ranks of a group divide; all have the same positions.

A rank computes the logits of its rows of the head. A chunk of positions has two all-reduces: the largest logits, then sums
of exponentials together with the logits of the targets. The gradients of the positions are summed over the ranks at the end.
The gradient of the head has zeros in the rows of other ranks, and is multiplied by the number of ranks: its mean over the
ranks, which `Parallelism.reduce_gradients` takes once a step, is the whole gradient.

Shapes: N positions, C positions of a chunk, D model dim, V vocabulary, R its rows on this rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from openafm.training.objectives import cross_entropy


def divided_cross_entropy_sum(x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over positions of -log softmax(x W^T)[target], a scalar in fp32, equal on all ranks of the group."""
    loss: Tensor = _DividedCrossEntropySum.apply(x_ND, weight_VD, targets_N, group)
    return loss


class _DividedCrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, group: dist.ProcessGroup) -> Tensor:
        with_gradient = any(ctx.needs_input_grad)
        num_rows = len(weight_VD) // group.size()
        first = group.rank() * num_rows
        weight_RD = weight_VD[first : first + num_rows].to(x_ND.dtype)
        loss = x_ND.new_zeros((), dtype=torch.float32)
        dx_ND = torch.empty_like(x_ND) if with_gradient else None
        dweight_VD = torch.zeros_like(weight_VD) if with_gradient else None
        chunk = min(max(256, cross_entropy.CHUNK_ELEMENTS // num_rows), len(x_ND))
        for start in range(0, len(x_ND), chunk):
            x_CD, targets_C1 = x_ND[start : start + chunk], targets_N[start : start + chunk, None] - first
            logits_CR = (x_CD @ weight_RD.T).float()
            is_own_C1 = (targets_C1 >= 0) & (targets_C1 < num_rows)
            own_targets_C1 = targets_C1.clamp(0, num_rows - 1)
            loss += _softmax_(logits_CR, own_targets_C1, is_own_C1, group)
            if dx_ND is None or dweight_VD is None:
                continue
            dlogits_CR = logits_CR.scatter_add_(1, own_targets_C1, -is_own_C1.float()).to(x_ND.dtype)
            torch.mm(dlogits_CR, weight_RD, out=dx_ND[start : start + chunk])
            dweight_VD[first : first + num_rows] += dlogits_CR.T @ x_CD
        if dx_ND is not None and dweight_VD is not None:
            dist.all_reduce(dx_ND, group=group)
            dweight_VD.mul_(group.size())
        ctx.save_for_backward(dx_ND, dweight_VD)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dlosses: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (dloss,) = dlosses
        dx_ND, dweight_VD = ctx.saved_tensors
        return dx_ND.mul_(dloss), dweight_VD.mul_(dloss), None, None


def _softmax_(logits_CR: Tensor, targets_C1: Tensor, is_own_C1: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Replace logits by probabilities in place; return the sum of the targets' negative log probabilities."""
    largest_C1 = logits_CR.amax(dim=1, keepdim=True)
    dist.all_reduce(largest_C1, dist.ReduceOp.MAX, group=group)
    logits_CR -= largest_C1
    target_logits_C1 = logits_CR.gather(1, targets_C1) * is_own_C1
    sums_C2 = torch.cat((logits_CR.exp_().sum(dim=1, keepdim=True), target_logits_C1), dim=1)
    dist.all_reduce(sums_C2, group=group)
    logits_CR /= sums_C2[:, :1]
    return (sums_C2[:, 0].log() - sums_C2[:, 1]).sum()
