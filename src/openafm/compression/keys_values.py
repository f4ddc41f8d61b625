"""Rounding of keys and values before they enter the cache, as modules for the attention's slot.

`TorchEngine` stores the rounded values in its compute dtype: the results of a compressed cache, in more memory. Gradients
pass straight through, so training simulates the numerics of the bundle.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openafm.compression.rounding import straight_through
from openafm.models.accounting import KVNumerics
from openafm.models.attention.grouped_query import KeysValues
from openafm.models.decoder import Decoder

_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-24, 65504.0  # the smallest and largest positive numbers of fp16


class RoundedToBfloat16(nn.Module):
    """Round to bfloat16."""

    def forward(self, x_BSKC: Tensor) -> Tensor:
        return x_BSKC.to(torch.bfloat16).to(x_BSKC.dtype)


class IntPerTokenHead(nn.Module):
    """Round symmetrically to `bits`, with one fp16 scale for each token and head."""

    def __init__(self, bits: int = 8) -> None:
        super().__init__()
        self.largest = 2 ** (bits - 1) - 1

    def forward(self, x_BSKC: Tensor) -> Tensor:
        x = x_BSKC.detach().float()
        exact_BSK1 = x.abs().amax(-1, keepdim=True).div(self.largest).clamp(_SMALLEST_SCALE, _LARGEST_SCALE)
        scale_BSK1 = exact_BSK1.to(torch.float16).float()
        rounded = (x / scale_BSK1).round().clamp(-self.largest, self.largest).mul(scale_BSK1)
        return straight_through(x_BSKC, rounded.to(x_BSKC.dtype))


def slot(numerics: KVNumerics) -> nn.Module:
    """Return the module that rounds keys and values to these numerics."""
    match numerics:
        case "float32":
            return nn.Identity()
        case "bfloat16":
            return RoundedToBfloat16()
        case "int8_per_token_head":
            return IntPerTokenHead(8)


def keep_in(decoder: Decoder, numerics: KVNumerics) -> None:
    """Round the keys and values of every layer that computes its own to these numerics."""
    for module in decoder.modules():
        if isinstance(module, KeysValues):
            module.slot = slot(numerics)
