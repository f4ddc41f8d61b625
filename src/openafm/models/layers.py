"""The primitives everything here is built of: a Linear that casts, RMSNorm in fp32, and the base of a layer's two halves."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.models.rms_norm import rms_norm


class Linear(nn.Module):
    """y = x W^T + b with an fp32 master weight, computed in the dtype of x: precision is explicit, there is no autocast."""

    def __init__(self, in_dim: int, out_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim))
        self.bias = nn.Parameter(torch.empty(out_dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)

    def initialise(self, generator: torch.Generator, scale: float = 1.0) -> None:
        """Normal weights of standard deviation scale / sqrt(in_dim); zero bias."""
        nn.init.normal_(self.weight, std=scale * self.in_dim**-0.5, generator=generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dim (arXiv 1910.07467), in fp32; the result has the input's dtype."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x.float(), self.weight, self.eps).to(x.dtype)

    def initialise(self) -> None:
        nn.init.ones_(self.weight)


class Sublayer(nn.Module, ABC):
    """Half of a layer: attention or feed-forward of any kind, whose output is added to the residual stream."""

    @abstractmethod
    def initialise(self, generator: torch.Generator, residual_scale: float) -> None:
        """Fresh weights, those of the projection into the residual stream scaled by `residual_scale`."""
