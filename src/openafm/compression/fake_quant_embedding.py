"""The 4-bit embedding in training: the formula of int4_embedding.py in torch, bit for bit, with straight-through gradients.

Shapes: V vocabulary, D model dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openafm.compression.errors import CompressionError
from openafm.compression.int4_embedding import BITS, GROUP, width_message
from openafm.compression.rounding import straight_through

_LARGEST_CODE = 2**BITS - 1


def fake_quantize_embedding(weight_VD: Tensor) -> Tensor:
    """Return the values of `quantize_embedding(weight, MinMaxRange())` in fp32, with the gradient of the weight.

    Raises:
        CompressionError: the width is not a multiple of 32.
    """
    if weight_VD.shape[1] % GROUP:
        raise CompressionError(width_message("the embedding", weight_VD.shape[1]))
    return straight_through(weight_VD, _rounded(weight_VD.detach().float()))


def _rounded(weight_VD: Tensor) -> Tensor:
    weight = weight_VD.unflatten(1, (-1, GROUP))
    low, high = weight.aminmax(dim=-1, keepdim=True)
    minimum = low.half().float()
    scale = (high - minimum).clamp_min(0).mul(1 / _LARGEST_CODE).half().float()
    code = ((weight - minimum) / torch.where(scale > 0, scale, 1.0)).round_().clamp_(0, _LARGEST_CODE)
    return code.mul_(scale).add_(minimum).flatten(1)
