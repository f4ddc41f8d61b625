"""Building blocks of the decoder: a Linear that casts, RMSNorm in fp32, and the base of attention and feed-forward.

With parallel tracks (models/tracks.py), weights and activations have a leading dim of tracks.

Shapes: T tracks, N tokens, D and F the dims of a product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.models.rms_norm import rms_norm


class Linear(nn.Module):
    """y = x W^T + b with an fp32 master weight, computed in the dtype of x. There is no autocast.

    With tracks the weight is [T, out, in] and x has the same leading dim.
    """

    def __init__(self, in_dim: int, out_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim))
        self.bias = nn.Parameter(torch.empty(out_dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return project(x, self.weight.to(x.dtype), bias)

    def stack_tracks(self, num_tracks: int) -> None:
        """Replace the weights by uninitialized ones with a leading dim of tracks."""
        self.weight = _stacked(self.weight, num_tracks)
        self.bias = None if self.bias is None else _stacked(self.bias, num_tracks)

    def initialize(self, generator: torch.Generator, scale: float = 1.0) -> None:
        """Draw normal weights of standard deviation scale / sqrt(in_dim); set the bias to zero."""
        nn.init.normal_(self.weight, std=scale * self.in_dim**-0.5, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dim (arXiv 1910.07467), in fp32; the result has the input's dtype.

    With tracks the weight is [T, D] and x has the same leading dim.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x.float(), self.weight, self.eps).to(x.dtype)

    def stack_tracks(self, num_tracks: int) -> None:
        """Replace the weight by an uninitialized one with a leading dim of tracks."""
        self.weight = _stacked(self.weight, num_tracks)

    def initialize(self) -> None:
        nn.init.ones_(self.weight)


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Return the number of weights of a module, built on the meta device without storage."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


class Sublayer(nn.Module, ABC):
    """Attention or feed-forward of any kind; its output is added to the residual stream."""

    @abstractmethod
    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        """Draw initial weights; those of the projection into the residual stream are scaled by `residual_scale`."""


@runtime_checkable
class TrackModule(Protocol):
    """A module whose own weights can have a leading dim of tracks."""

    def stack_tracks(self, num_tracks: int) -> None: ...


def stack_tracks(module: nn.Module, num_tracks: int) -> None:
    """Give the weights of all parts of a module a leading dim of tracks."""
    for part in module.modules():
        if isinstance(part, TrackModule):
            part.stack_tracks(num_tracks)


def _stacked(weight: Tensor, num_tracks: int) -> nn.Parameter:
    return nn.Parameter(weight.new_empty(num_tracks, *weight.shape))


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b; with weights [T, F, D] as one batched product for all tracks."""
    return F.linear(x, weight, bias) if weight.ndim == 2 else _project_tracks(x, weight, bias)


def _project_tracks(x: Tensor, weight_TFD: Tensor, bias_TF: Tensor | None) -> Tensor:
    x_TND, weight_TDF = x.flatten(1, -2), weight_TFD.transpose(1, 2)
    y_TNF = torch.bmm(x_TND, weight_TDF) if bias_TF is None else torch.baddbmm(bias_TF[:, None], x_TND, weight_TDF)
    return y_TNF.unflatten(1, x.shape[1:-1])
