"""The gated feed-forward. Shapes: D model dim, F hidden dim."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.models.config import DenseFeedForwardConfig
from openafm.models.layers import Linear, Sublayer

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu}


class FeedForward(Sublayer):
    """down(activation(gate(x)) * up(x)); gate and up are separate Linears, as adapters and exports address them by name."""

    def __init__(self, config: DenseFeedForwardConfig, dim: int) -> None:
        super().__init__()
        self.gate = Linear(dim, config.hidden_dim, config.bias)
        self.up = Linear(dim, config.hidden_dim, config.bias)
        self.down = Linear(config.hidden_dim, dim, config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x_D: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x_D)) * self.up(x_D))

    def initialize(self, generator: torch.Generator, residual_scale: float) -> None:
        self.gate.initialize(generator)
        self.up.initialize(generator)
        self.down.initialize(generator, residual_scale)
