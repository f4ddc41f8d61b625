"""Layer norm with a bias, as vision encoders use it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """Layer norm over the last dim, in fp32; the result has the input's dtype."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.empty(dim)), nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":  # whose kernel computes bf16 in fp32, with weights in fp32
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return F.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)

    def initialize(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
