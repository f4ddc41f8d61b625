"""The initial scale of a 2-bit matrix: the one with the smallest squared error, and simpler choices for comparison.

The report's "Newton-Raphson inspired" search for the clip is Newton's method on E(s) = sum (w - s L(w / s))^2 here,
where L is the nearest level. With levels one apart, boundaries b between them and p the density of weights,
E'/2 = s sum L^2 - sum w L and E''/2 = sum L^2 - s sum_b p(b s) b^2. E has several minima when weights are few or have
outliers, so a scan over scales chooses where Newton's method starts. Weights are sorted once; with prefix sums every
evaluation of E, E' and E'' is then a search for the boundaries.

Shapes: G groups with a scale each, N weights of a group, K scales of a group, B boundaries (3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openafm.compression.config import AbsmaxClip, ClipConfig, LevelSetConfig, LloydClip, NewtonClip, OctavClip
from openafm.compression.errors import CompressionError
from openafm.core.config import ConfigError

TOLERANCE = 1e-4  # relative change of the scale in the last iteration
_WINDOW = 0.05  # half width of the window in which the density is counted, relative to the boundary
_MIN_CURVATURE = 0.05  # relative to sum L^2; below it the estimate of E'' is replaced by sum L^2
_SCAN_RATIO = 1.02  # of successive scales in the scan
_NUM_STARTS = 4  # of Newton's method, from the best scales of the scan


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A scale for each group, and the number of iterations until all converged."""

    scale_G: Tensor
    num_iterations: int


def find_scale(clip: ClipConfig, weight_GN: Tensor, levels: LevelSetConfig, name: str = "the matrix") -> Clip:
    """Return the initial scale of each group of weights, in fp32.

    Raises:
        CompressionError: a weight is not finite, or all weights of a group are zero; the message holds `name`.
    """
    weight_GN = weight_GN.detach().float()
    if not bool(weight_GN.isfinite().all()):
        raise CompressionError(f"{name} holds a value that is not finite; the model diverged, train it again")
    if not bool(weight_GN.any(dim=1).all()):
        raise CompressionError(f"{name} or one of its rows is all zero and has no scale; remove it or train it")
    match clip:
        case AbsmaxClip():
            return Clip(scale_G=weight_GN.abs().amax(1) / levels.largest, num_iterations=0)
        case LloydClip(max_iterations=limit):
            return _iterate(
                weight_GN.abs().mean(1, keepdim=True), limit, lambda scale_G1: _lloyd(weight_GN, scale_G1, levels)
            )
        case NewtonClip(max_iterations=limit):
            return _newton(weight_GN, levels, limit)
        case OctavClip(max_iterations=limit):
            found = _iterate(weight_GN.abs().mean(1, keepdim=True), limit, lambda clip_G1: _octav(weight_GN, clip_G1))
            return Clip(scale_G=found.scale_G / 2, num_iterations=found.num_iterations)
    raise ConfigError(f"unknown clip {type(clip).__name__}; use NewtonClip, LloydClip, OctavClip or AbsmaxClip")


def codes_of(weight_GN: Tensor, scale_G1: Tensor, levels: LevelSetConfig) -> Tensor:
    """Return the nearest levels as codes 0 to 3, by the report's formula."""
    return (weight_GN / scale_G1 + levels.zero).round().clamp(levels.lowest, levels.highest) - levels.lowest


def squared_error(weight_GN: Tensor, scale_G: Tensor, levels: LevelSetConfig) -> Tensor:
    """Return the squared error of each group, summed over its weights."""
    scale_G1 = scale_G[:, None]
    level_GN = codes_of(weight_GN, scale_G1, levels) + levels.levels[0]
    return (weight_GN - scale_G1 * level_GN).square().sum(1)


class _SortedWeights:
    """Sums over the weights of each group below a boundary, for any scale, from sorted weights and prefix sums."""

    def __init__(self, weight_GN: Tensor, levels: LevelSetConfig) -> None:
        self._sorted_GN = weight_GN.sort(dim=1).values
        self._sums_GN = torch.nn.functional.pad(self._sorted_GN.double().cumsum(1), (1, 0))
        self.num_weights = weight_GN.shape[1]
        self._boundaries_B = [level + 0.5 for level in levels.levels[:-1]]
        self._levels = levels.levels

    def products(self, scale_GK: Tensor) -> tuple[Tensor, Tensor]:
        """sum w L and sum L^2 at each scale."""
        top = self._levels[-1]
        product_GK = (top * self._sums_GN[:, -1:]).expand(scale_GK.shape).clone()
        energy_GK = torch.full_like(product_GK, top**2 * self.num_weights)
        for boundary, level in zip(self._boundaries_B, self._levels, strict=False):
            below_GK = self._num_below(boundary * scale_GK)
            product_GK -= self._sums_GN.gather(1, below_GK)
            energy_GK -= ((level + 1) ** 2 - level**2) * below_GK
        return product_GK, energy_GK

    def error(self, scale_GK: Tensor) -> Tensor:
        """E at each scale, less the sum of squares of the weights."""
        product_GK, energy_GK = self.products(scale_GK)
        return scale_GK.double() * (scale_GK.double() * energy_GK - 2 * product_GK)

    def newton_step(self, scale_GK: Tensor) -> Tensor:
        product_GK, energy_GK = self.products(scale_GK)
        slope_GK = scale_GK.double() * energy_GK - product_GK
        curvature_GK = energy_GK.clone()
        for boundary in self._boundaries_B:
            if boundary == 0:
                continue  # weights at it change between levels of equal magnitude, at any scale
            edge_GK, width_GK = boundary * scale_GK, _WINDOW * abs(boundary) * scale_GK
            share_GK = self._num_below(edge_GK + width_GK) - self._num_below(edge_GK - width_GK)
            curvature_GK -= share_GK / (2 * _WINDOW * abs(boundary)) * boundary**2
        is_flat_GK = curvature_GK < _MIN_CURVATURE * energy_GK
        divisor_GK = torch.where(is_flat_GK, energy_GK, curvature_GK).clamp_min(1e-30)
        return _positive((scale_GK - slope_GK / divisor_GK).float(), scale_GK)

    def _num_below(self, value_GK: Tensor) -> Tensor:
        return torch.searchsorted(self._sorted_GN, value_GK.contiguous())


def _newton(weight_GN: Tensor, levels: LevelSetConfig, limit: int) -> Clip:
    """Newton's method from the best scales of a scan; the best scale seen is returned."""
    weights = _SortedWeights(weight_GN, levels)
    magnitude_GN = weight_GN.abs()
    first_G1, last_G1 = magnitude_GN.mean(1, keepdim=True) / 4, magnitude_GN.amax(1, keepdim=True) * 2
    num_scales = 2 + int((last_G1 / first_G1).max().log() / math.log(_SCAN_RATIO))
    scan_GK = torch.minimum(first_G1 * _SCAN_RATIO ** torch.arange(num_scales, device=weight_GN.device), last_G1)
    starts_GK = weights.error(scan_GK).topk(min(_NUM_STARTS, num_scales), dim=1, largest=False).indices
    scale_GK = best_GK = scan_GK.gather(1, starts_GK)
    best_error_GK = weights.error(scale_GK)
    best_G1, num_iterations, has_converged = scale_GK[:, :1], 0, False
    while num_iterations < limit and not has_converged:
        scale_GK = weights.newton_step(scale_GK)
        error_GK = weights.error(scale_GK)
        best_GK = torch.where(error_GK < best_error_GK, scale_GK, best_GK)
        best_error_GK = torch.minimum(error_GK, best_error_GK)
        previous_G1, best_G1 = best_G1, best_GK.gather(1, best_error_GK.argmin(1, keepdim=True))
        num_iterations += 1
        has_converged = _is_close(best_G1, previous_G1)
    return Clip(scale_G=best_G1[:, 0], num_iterations=num_iterations)


def _iterate(scale_G1: Tensor, limit: int, step: Callable[[Tensor], Tensor]) -> Clip:
    """Repeat `step` until no scale changes by more than the tolerance."""
    num_iterations, has_converged = 0, False
    while num_iterations < limit and not has_converged:
        previous_G1, scale_G1 = scale_G1, step(scale_G1)
        num_iterations += 1
        has_converged = _is_close(scale_G1, previous_G1)
    return Clip(scale_G=scale_G1[:, 0], num_iterations=num_iterations)


def _is_close(scale_G1: Tensor, previous_G1: Tensor) -> bool:
    return bool(((scale_G1 - previous_G1).abs() <= TOLERANCE * previous_G1).all())


def _lloyd(weight_GN: Tensor, scale_G1: Tensor, levels: LevelSetConfig) -> Tensor:
    level_GN = codes_of(weight_GN, scale_G1, levels) + levels.levels[0]
    return _positive((weight_GN * level_GN).sum(1, keepdim=True) / level_GN.square().sum(1, keepdim=True), scale_G1)


def _octav(weight_GN: Tensor, clip_G1: Tensor) -> Tensor:
    """One step of the clip, which is twice the scale; 1/48 is the rounding noise at 2 bits."""
    magnitude_GN = weight_GN.abs()
    above_GN = magnitude_GN > clip_G1
    num_above_G1 = above_GN.float().sum(1, keepdim=True)
    below_G1 = weight_GN.shape[1] - num_above_G1
    return _positive((magnitude_GN * above_GN).sum(1, keepdim=True) / (below_G1 / 48 + num_above_G1), clip_G1)


def _positive(scale_GK: Tensor, previous_GK: Tensor) -> Tensor:
    """Replace a step that is not positive by half of the previous scale."""
    return torch.where(scale_GK > 0, scale_GK, previous_GK / 2)
