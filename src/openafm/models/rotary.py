"""Rotary position embedding, in both channel layouts.

Shapes: B batch, S sequence, H heads, C head dim, F = C / 2 frequencies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openafm.models.config import RotaryConfig


class Rotation:
    """The rotation of every position of a batch, computed once per forward and shared by all layers."""

    def __init__(self, config: RotaryConfig, positions_BS: Tensor, head_dim: int) -> None:
        exponents_F = torch.arange(0, head_dim, 2, device=positions_BS.device, dtype=torch.float32) / head_dim
        angles_BS1F = (positions_BS.float()[..., None] * config.theta**-exponents_F)[..., None, :]
        self._cos_BS1F, self._sin_BS1F = angles_BS1F.cos(), angles_BS1F.sin()
        self._layout = config.layout

    def apply(self, x_BSHC: Tensor) -> Tensor:
        """Rotate each pair of channels by its position's angle, in fp32; the result has the input's dtype."""
        x = x_BSHC.float()
        if self._layout == "interleaved":
            even, odd = x[..., 0::2], x[..., 1::2]
            return torch.stack(self._rotate(even, odd), dim=-1).flatten(-2).to(x_BSHC.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat(self._rotate(first, second), dim=-1).to(x_BSHC.dtype)

    def _rotate(self, a_BSHF: Tensor, b_BSHF: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._cos_BS1F, self._sin_BS1F
        return a_BSHF * cos - b_BSHF * sin, b_BSHF * cos + a_BSHF * sin
