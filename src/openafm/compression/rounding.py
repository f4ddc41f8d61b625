"""Rounding with straight-through gradients, shared by training and inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openafm.compression.config import LevelSetConfig


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: Tensor, rounded: Tensor, slope: Tensor | None) -> Tensor:
        ctx.slope = slope
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0]
        return gradient if ctx.slope is None else (gradient * ctx.slope).to(gradient.dtype), None, None


def straight_through(exact: Tensor, rounded: Tensor, slope: Tensor | None = None) -> Tensor:
    """Return `rounded` with the gradient of `slope` times `exact` (straight-through estimator, arXiv 1308.3432)."""
    return _StraightThrough.apply(exact, rounded, slope) if exact.requires_grad else rounded


class _Levels(torch.autograd.Function):
    """Nearest levels of w / s in units of s. Gradients: dL/dw = 1/s and dL/ds = -w/s^2 where nothing is clamped."""

    @staticmethod
    def forward(ctx: Any, weight_RC: Tensor, scale_R1: Tensor, levels: LevelSetConfig) -> Tensor:
        ratio_RC = weight_RC / scale_R1
        shifted_RC = (ratio_RC + levels.zero).round_()
        level_RC = shifted_RC.clamp(levels.lowest, levels.highest)
        ctx.save_for_backward(ratio_RC, scale_R1, shifted_RC == level_RC)
        return level_RC.sub_(levels.zero)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        ratio_RC, scale_R1, inside_RC = ctx.saved_tensors
        gradient_RC = gradients[0] * inside_RC / scale_R1
        return gradient_RC, -(gradient_RC * ratio_RC).sum_to_size(scale_R1.shape), None


def nearest_levels(weight_RC: Tensor, scale_R1: Tensor, levels: LevelSetConfig) -> Tensor:
    """Return the nearest level of each weight in units of the scale ([1, 1] or [R, 1]), with straight-through gradients."""
    return _Levels.apply(weight_RC, scale_R1, levels)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, with its gradient multiplied by `factor`."""
    return _ScaledGradient.apply(x, factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundedActivations:
    """Integers from -127 to 127 in the dtype of the activations, and one fp32 scale for each token, [..., 1]."""

    integers: Tensor
    scale: Tensor


def round_per_token(x: Tensor) -> RoundedActivations:
    """Return activations rounded to symmetric 8 bits per token, with straight-through gradients."""
    exact = x.detach().float()
    scale = exact.abs().amax(-1, keepdim=True).div_(127).clamp_min_(torch.finfo(torch.float32).tiny)
    integers = (exact / scale).round_().to(x.dtype)
    return RoundedActivations(integers=straight_through(x, integers, 1 / scale), scale=scale)
