"""How exactly keys and values are kept, put into the slot that they pass on their way to the cache.

`TorchEngine` keeps the rounded values in its compute dtype: it computes what a compressed cache computes, in more memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openafm.models.accounting import KVNumerics

_SMALLEST_SCALE = 2.0**-24  # the smallest number above zero in fp16


class RoundedToBfloat16(nn.Module):
    """Sixteen bits a number, with the exponent of fp32."""

    def forward(self, x_BSKC: Tensor) -> Tensor:
        return x_BSKC.to(torch.bfloat16).to(x_BSKC.dtype)


class Int8PerTokenHead(nn.Module):
    """Eight bits a number, symmetric, with one fp16 scale for each token and head."""

    def forward(self, x_BSKC: Tensor) -> Tensor:
        x = x_BSKC.float()
        scale_BSK1 = x.abs().amax(-1, keepdim=True).div(127).to(torch.float16).float().clamp_min(_SMALLEST_SCALE)
        return (x / scale_BSK1).round().clamp(-127, 127).mul(scale_BSK1).to(x_BSKC.dtype)


def slot(numerics: KVNumerics) -> nn.Module:
    """What keys and values pass to be kept in these numerics."""
    match numerics:
        case "float32":
            return nn.Identity()
        case "bfloat16":
            return RoundedToBfloat16()
        case "int8_per_token_head":
            return Int8PerTokenHead()
