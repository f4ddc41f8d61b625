"""Scopes of attention within an image. Windows are a batch dim: no mask, no padding.

Tokens of an image are its registers, then its patches window by window. The encoder orders the patches once, so that the
patches of a window are adjacent in every layer.

Shapes: B images, T tokens (R registers, then N windows of W patches), H heads, C head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor


class Scope(ABC):
    """Which tokens of an image attend to each other."""

    @abstractmethod
    def attend(self, q_BTHC: Tensor, k_BTHC: Tensor, v_BTHC: Tensor, num_registers: int, num_windows: int) -> Tensor:
        """Return the attention output of all tokens, o_BTHC."""


class GlobalScope(Scope):
    """See `GlobalScopeConfig`."""

    def attend(self, q_BTHC: Tensor, k_BTHC: Tensor, v_BTHC: Tensor, num_registers: int, num_windows: int) -> Tensor:
        return _attention(q_BTHC, k_BTHC, v_BTHC)


class WindowScope(Scope):
    """See `WindowScopeConfig`."""

    def attend(self, q_BTHC: Tensor, k_BTHC: Tensor, v_BTHC: Tensor, num_registers: int, num_windows: int) -> Tensor:
        windows = [x[:, num_registers:].unflatten(1, (num_windows, -1)).flatten(0, 1) for x in (q_BTHC, k_BTHC, v_BTHC)]
        o_BPHC = _attention(*windows).unflatten(0, (-1, num_windows)).flatten(1, 2)
        if num_registers == 0:
            return o_BPHC
        return torch.cat((torch.zeros_like(q_BTHC[:, :num_registers]), o_BPHC), dim=1)


class RegisterWindowScope(Scope):
    """See `RegisterWindowScopeConfig`."""

    def attend(self, q_BTHC: Tensor, k_BTHC: Tensor, v_BTHC: Tensor, num_registers: int, num_windows: int) -> Tensor:
        q, k, v = (_windows_with_registers(x, num_registers, num_windows) for x in (q_BTHC, k_BTHC, v_BTHC))
        o_BNSHC = _attention(q, k, v).unflatten(0, (-1, num_windows))
        registers_BRHC = o_BNSHC[:, :, :num_registers].mean(dim=1)
        return torch.cat((registers_BRHC, o_BNSHC[:, :, num_registers:].flatten(1, 2)), dim=1)


def _windows_with_registers(x_BTHC: Tensor, num_registers: int, num_windows: int) -> Tensor:
    """Return each window behind a copy of the registers, [B * N, R + W, H, C]."""
    windows_BNWHC = x_BTHC[:, num_registers:].unflatten(1, (num_windows, -1))
    registers_BNRHC = x_BTHC[:, None, :num_registers].expand(-1, num_windows, -1, -1, -1)
    return torch.cat((registers_BNRHC, windows_BNWHC), dim=2).flatten(0, 1)


def _attention(q_BSHC: Tensor, k_BSHC: Tensor, v_BSHC: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_BSHC, k_BSHC, v_BSHC))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
