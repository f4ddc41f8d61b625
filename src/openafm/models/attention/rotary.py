"""Rotary position embedding, in both channel layouts.

Shapes: B batch, S sequence, H heads, C head dim, F = C / 2 frequencies.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from openafm.models.attention.position_embedding import PositionEmbedding
from openafm.models.config import LinearRotaryConfig, Llama3RotaryConfig, RotaryConfig, YarnRotaryConfig


class Rotation(PositionEmbedding):
    """Rotate each pair of channels by an angle proportional to the position, in fp32.

    A pair is one complex number, and a rotation one complex product: a fifth of the time of separate sines and cosines.
    """

    def __init__(self, config: RotaryConfig, positions_BS: Tensor, head_dim: int) -> None:
        exponents_F = torch.arange(0, head_dim, 2, device=positions_BS.device, dtype=torch.float32) / head_dim
        frequencies_F = self._scaled(config, config.theta**-exponents_F)
        angles_BS1F = (positions_BS.float()[..., None] * frequencies_F)[..., None, :]
        self._rotations_BS1F = torch.polar(torch.full_like(angles_BS1F, config.amplitude), angles_BS1F)
        self._layout = config.layout

    def _scaled(self, config: Any, frequencies_F: Tensor) -> Tensor:
        """Return the radians per position of each pair."""
        return frequencies_F

    def apply(self, x_BSHC: Tensor) -> Tensor:
        x = x_BSHC.float()
        if self._layout == "interleaved":
            pairs_BSHF = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs_BSHF * self._rotations_BS1F).flatten(-2).to(x_BSHC.dtype)
        turned_BSHF = torch.complex(*x.chunk(2, dim=-1)) * self._rotations_BS1F
        return torch.cat((turned_BSHF.real, turned_BSHF.imag), dim=-1).to(x_BSHC.dtype)


class LinearRotation(Rotation):
    """Divide all frequencies by one factor."""

    def _scaled(self, config: LinearRotaryConfig, frequencies_F: Tensor) -> Tensor:
        return frequencies_F / config.factor


class Llama3Rotation(Rotation):
    """Divide low frequencies by a factor and keep high frequencies."""

    def _scaled(self, config: Llama3RotaryConfig, frequencies_F: Tensor) -> Tensor:
        turns_F = config.original_context_length * frequencies_F / (2 * math.pi)
        kept_F = ((turns_F - config.low_turns) / (config.high_turns - config.low_turns)).clamp(0, 1)
        return kept_F * frequencies_F + (1 - kept_F) * frequencies_F / config.factor


class YarnRotation(Rotation):
    """Divide the frequencies of late pairs by a factor and keep those of early pairs."""

    def _scaled(self, config: YarnRotaryConfig, frequencies_F: Tensor) -> Tensor:
        kept_F = frequencies_F.new_tensor(config.kept_shares(2 * len(frequencies_F)))
        return kept_F * frequencies_F + (1 - kept_F) * frequencies_F / config.factor
