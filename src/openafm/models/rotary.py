"""Rotary position embedding, in both channel layouts.

Shapes: B batch, S sequence, H heads, C head dim, F = C / 2 frequencies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from openafm.models.config import RotaryConfig


class PositionEmbedding(ABC):
    """The position embedding of one batch, made once per forward and shared by all layers."""

    @abstractmethod
    def apply(self, x_BSHC: Tensor) -> Tensor:
        """Queries or keys with their positions worked in; the result has the input's dtype."""


class Rotation(PositionEmbedding):
    """Turns each pair of channels by an angle that grows with the position, in fp32.

    A pair is one complex number and a turn one complex product: a fifth of the time that sines and cosines take apart.
    """

    def __init__(self, config: RotaryConfig, positions_BS: Tensor, head_dim: int) -> None:
        exponents_F = torch.arange(0, head_dim, 2, device=positions_BS.device, dtype=torch.float32) / head_dim
        angles_BS1F = (positions_BS.float()[..., None] * config.theta**-exponents_F)[..., None, :]
        self._turns_BS1F = torch.polar(torch.ones_like(angles_BS1F), angles_BS1F)
        self._layout = config.layout

    def apply(self, x_BSHC: Tensor) -> Tensor:
        x = x_BSHC.float()
        if self._layout == "interleaved":
            pairs_BSHF = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs_BSHF * self._turns_BS1F).flatten(-2).to(x_BSHC.dtype)
        turned_BSHF = torch.complex(*x.chunk(2, dim=-1)) * self._turns_BS1F
        return torch.cat((turned_BSHF.real, turned_BSHF.imag), dim=-1).to(x_BSHC.dtype)
