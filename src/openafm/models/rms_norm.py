"""Root-mean-square norm with an explicit backward pass, which takes a quarter of autograd's time on a CPU.

Shapes: ... leading dims, D the normalized dim, T tracks with a weight each, N tokens of a track.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dim (arXiv 1910.07467), in the dtype of x.

    With a weight [T, D] the first dim of x is T.
    """
    if weight_D.ndim == 2:
        normed_TND: Tensor = _RMSNormOfTracks.apply(x_D.flatten(1, -2), weight_D, eps)
        return normed_TND.view(x_D.shape)
    if not torch.is_grad_enabled():
        # for a single token, the set-up of the autograd function takes longer than the norm
        return F.rms_norm(x_D, weight_D.shape, weight_D, eps)
    normed: Tensor = _RMSNorm.apply(x_D, weight_D, eps)
    return normed


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        square_sum_1 = torch.linalg.vector_norm(x_D, dim=-1, keepdim=True).square_()
        scale_1 = square_sum_1.div_(x_D.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x_D, weight_D, scale_1)
        return (x_D * scale_1).mul_(weight_D)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, Tensor, None]:
        (dy_D,) = dys
        x_D, weight_D, scale_1 = ctx.saved_tensors
        product_D = dy_D * x_D  # used by both gradients
        dweight_D = scale_1.flatten() @ product_D.flatten(0, -2)
        along_x_1 = (product_D @ weight_D)[..., None] * scale_1.pow(3).div_(-x_D.shape[-1])
        dx_D = torch.mul(dy_D, weight_D, out=product_D).mul_(scale_1).addcmul_(x_D, along_x_1)
        return dx_D, dweight_D, None


class _RMSNormOfTracks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TND: Tensor, weight_TD: Tensor, eps: float) -> Tensor:
        square_sum_TN1 = torch.linalg.vector_norm(x_TND, dim=-1, keepdim=True).square_()
        scale_TN1 = square_sum_TN1.div_(x_TND.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x_TND, weight_TD, scale_TN1)
        return (x_TND * scale_TN1).mul_(weight_TD[:, None])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, Tensor, None]:
        (dy_TND,) = dys
        x_TND, weight_TD, scale_TN1 = ctx.saved_tensors
        product_TND = dy_TND * x_TND
        dweight_TD = torch.bmm(scale_TN1.mT, product_TND)[:, 0]
        # A batched product with a column takes eight times as long as one with a row.
        along_x_TN1 = torch.bmm(weight_TD[:, None], product_TND.mT).mT * scale_TN1.pow(3).div_(-x_TND.shape[-1])
        dx_TND = torch.mul(dy_TND, weight_TD[:, None], out=product_TND).mul_(scale_TN1).addcmul_(x_TND, along_x_TN1)
        return dx_TND, dweight_TD, None
