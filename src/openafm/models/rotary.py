"""Rotary position embedding, in both channel layouts.

Shapes: B batch, S sequence, H heads, C head dim, F = C / 2 frequencies.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from openafm.models.config import LinearRotaryConfig, Llama3RotaryConfig, RotaryConfig
from openafm.models.position_embedding import PositionEmbedding


class Rotation(PositionEmbedding):
    """Rotate each pair of channels by an angle proportional to the position, in fp32."""

    def __init__(self, config: RotaryConfig, positions_BS: Tensor, head_dim: int) -> None:
        exponents_F = torch.arange(0, head_dim, 2, device=positions_BS.device, dtype=torch.float32) / head_dim
        frequencies_F = self._scaled(config, config.theta**-exponents_F)
        angles_BS1F = (positions_BS.float()[..., None] * frequencies_F)[..., None, :]
        rotations_BS1F = torch.polar(torch.ones_like(angles_BS1F), angles_BS1F)
        if config.layout == "half":
            self._rotations = torch.stack((rotations_BS1F.real, rotations_BS1F.imag))
        else:
            self._rotations = rotations_BS1F

    def _scaled(self, config: Any, frequencies_F: Tensor) -> Tensor:
        """Return the radians per position of each pair."""
        return frequencies_F

    def apply(self, x_BSHC: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x_BSHC.requires_grad):
            return _rotated(x_BSHC, self._rotations)
        rotated_BSHC: Tensor = _Rotated.apply(x_BSHC, self._rotations)
        return rotated_BSHC


class _Rotated(torch.autograd.Function):
    """The backward pass rotates by the negative angles; autograd's, through views of pairs, takes half as long again."""

    @staticmethod
    def forward(ctx: Any, x_BSHC: Tensor, rotations: Tensor) -> Tensor:
        ctx.save_for_backward(rotations)
        return _rotated(x_BSHC, rotations)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None]:
        (rotations,) = ctx.saved_tensors
        return _rotated(dys[0], rotations, sign=-1), None


def _rotated(x_BSHC: Tensor, rotations: Tensor, sign: int = 1) -> Tensor:
    """Rotate neighboring channels by complex numbers [B, S, 1, F], pairs C / 2 apart by cos and sin [2, B, S, 1, F]."""
    x = x_BSHC.float()
    if rotations.is_complex():
        pairs_BSHF = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        turned_BSHF = pairs_BSHF * (rotations if sign > 0 else rotations.conj())
        return torch.view_as_real(turned_BSHF).flatten(-2).to(x_BSHC.dtype)
    cos, sin = rotations.unbind()
    first, second = x.chunk(2, dim=-1)
    turned = torch.empty_like(x)
    turned_first, turned_second = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=turned_first).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=turned_second).addcmul_(first, sin, value=sign)
    return turned.to(x_BSHC.dtype)


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
