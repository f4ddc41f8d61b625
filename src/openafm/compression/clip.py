"""Where the scale of a 2-bit matrix starts: the one with the least squared error, and simpler choices to compare with.

The report's "Newton-Raphson inspired" search for the clip is read as Newton's method on E(s) = sum (w - s L(w / s))^2, where
L picks the nearest level. With levels one apart, boundaries b between them and p the density of weights,
E'/2 = s sum L^2 - sum w L and E''/2 = sum L^2 - s sum_b p(b s) b^2.

Shapes: G groups that have a scale each, N weights of a group, L levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openafm.compression.config import AbsmaxClip, ClipConfig, LevelSetConfig, LloydClip, NewtonClip, OctavClip
from openafm.compression.errors import CompressionError
from openafm.core.config import ConfigError

TOLERANCE = 1e-4  # of the scale, from one iteration to the next
_WINDOW = 0.05  # half the width, as a share of the boundary, of the window in which the density is counted
_LEAST_CURVATURE = 0.05  # below it Newton's step is not to be trusted


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A scale for each group, and the iterations that the slowest of them took."""

    scale_G: Tensor
    num_iterations: int


def find_scale(clip: ClipConfig, weight_GN: Tensor, levels: LevelSetConfig, name: str = "the matrix") -> Clip:
    """The scale that each group of weights starts from, in fp32.

    Raises:
        CompressionError: a weight is not finite, or all of a group are zero; the message holds `name`.
    """
    weight_GN = weight_GN.detach().float()
    if not bool(weight_GN.isfinite().all()):
        raise CompressionError(f"{name} holds a value that is not finite; the model is broken, train it again")
    if not bool(weight_GN.any(dim=1).all()):
        raise CompressionError(f"{name} is all zero, or a row of it is: it has no scale; leave it out or train it")
    match clip:
        case AbsmaxClip():
            return Clip(scale_G=weight_GN.abs().amax(1) / levels.largest, num_iterations=0)
        case LloydClip(max_iterations=most):
            return _iterate(weight_GN, most, lambda scale_G1: _lloyd(weight_GN, scale_G1, levels))
        case NewtonClip(max_iterations=most):
            return _iterate(weight_GN, most, lambda scale_G1: _newton(weight_GN, scale_G1, levels))
        case OctavClip(max_iterations=most):
            found = _iterate(weight_GN, most, lambda clip_G1: _octav(weight_GN, clip_G1))
            return Clip(scale_G=found.scale_G / 2, num_iterations=found.num_iterations)
    raise ConfigError(f"unknown clip {type(clip).__name__}; use NewtonClip, LloydClip, OctavClip or AbsmaxClip")


def codes_of(weight_GN: Tensor, scale_G1: Tensor, levels: LevelSetConfig) -> Tensor:
    """The nearest levels as codes 0 to 3, by the report's formula."""
    return (weight_GN / scale_G1 + levels.zero).round().clamp(levels.lowest, levels.highest) - levels.lowest


def squared_error(weight_GN: Tensor, scale_G: Tensor, levels: LevelSetConfig) -> Tensor:
    """Of each group, summed over its weights."""
    scale_G1 = scale_G[:, None]
    level_GN = codes_of(weight_GN, scale_G1, levels) + levels.levels[0]
    return (weight_GN - scale_G1 * level_GN).square().sum(1)


def _iterate(weight_GN: Tensor, most: int, step: Callable[[Tensor], Tensor]) -> Clip:
    """From the mean magnitude until no group moves by more than the tolerance."""
    scale_G1 = weight_GN.abs().mean(1, keepdim=True)
    num_iterations, settled = 0, False
    while num_iterations < most and not settled:
        before_G1, scale_G1 = scale_G1, step(scale_G1)
        num_iterations += 1
        settled = bool(((scale_G1 - before_G1).abs() <= TOLERANCE * before_G1).all())
    return Clip(scale_G=scale_G1[:, 0], num_iterations=num_iterations)


def _lloyd(weight_GN: Tensor, scale_G1: Tensor, levels: LevelSetConfig) -> Tensor:
    level_GN = codes_of(weight_GN, scale_G1, levels) + levels.levels[0]
    return _positive((weight_GN * level_GN).sum(1, keepdim=True) / level_GN.square().sum(1, keepdim=True), scale_G1)


def _newton(weight_GN: Tensor, scale_G1: Tensor, levels: LevelSetConfig) -> Tensor:
    ratio_GN = weight_GN / scale_G1
    level_GN = (ratio_GN + levels.zero).round().clamp(levels.lowest, levels.highest) - levels.zero
    energy_G1 = level_GN.square().mean(1, keepdim=True)
    slope_G1 = scale_G1 * energy_G1 - (weight_GN * level_GN).mean(1, keepdim=True)
    curvature_G1 = energy_G1.clone()
    for lower in levels.levels[:-1]:
        boundary = lower + 0.5
        if boundary == 0:
            continue  # weights that cross it change level but not magnitude by anything that moves with s
        width = _WINDOW * abs(boundary)
        share_G1 = ((ratio_GN - boundary).abs() < width).float().mean(1, keepdim=True)
        curvature_G1 -= share_G1 / (2 * width) * boundary**2
    trusted_G1 = torch.where(curvature_G1 < _LEAST_CURVATURE, energy_G1, curvature_G1)
    return _positive(scale_G1 - slope_G1 / trusted_G1, scale_G1)


def _octav(weight_GN: Tensor, clip_G1: Tensor) -> Tensor:
    """One step of the clip, whose half is the scale; 1/48 is the noise of rounding at 2 bits."""
    magnitude_GN = weight_GN.abs()
    above_GN = magnitude_GN > clip_G1
    num_above_G1 = above_GN.float().sum(1, keepdim=True)
    below_G1 = weight_GN.shape[1] - num_above_G1
    return _positive((magnitude_GN * above_GN).sum(1, keepdim=True) / (below_G1 / 48 + num_above_G1), clip_G1)


def _positive(scale_G1: Tensor, before_G1: Tensor) -> Tensor:
    """A step that overshoots zero goes half of the way instead."""
    return torch.where(scale_G1 > 0, scale_G1, before_G1 / 2)
