"""Convolutions of a vision encoder, before the patch embedding (arXiv 2106.14881) or alone.

Shapes: B images, Y and X pixels or outputs of a side, C channels, O output channels, K taps of a kernel's side.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.models.layers import Linear
from openafm.models.vision.config import ConvolutionConfig, VisionConfig
from openafm.models.vision.layer_norm import LayerNorm


class Convolution(nn.Module):
    """See `ConvolutionConfig`. The weight is a matrix [O, K * K * C], as compression and engines expect it."""

    def __init__(self, config: ConvolutionConfig, num_inputs: int, eps: float) -> None:
        super().__init__()
        self.config = config
        self.product = Linear(num_inputs, config.channels, bias=True)
        self.norm = LayerNorm(config.channels, eps)

    def forward(self, x_BYXC: Tensor) -> Tensor:
        side, product = self.config.kernel_side, self.product
        assert product.bias is not None
        weight_OCKK = product.weight.to(x_BYXC.dtype).unflatten(1, (side, side, -1)).permute(0, 3, 1, 2)
        y_BOYX = F.conv2d(
            x_BYXC.permute(0, 3, 1, 2),
            weight_OCKK.contiguous(memory_format=torch.channels_last),
            product.bias.to(x_BYXC.dtype),
            stride=self.config.stride,
            padding=side // 2,
        )
        y_BYXO: Tensor = self.norm(F.gelu(y_BOYX.permute(0, 2, 3, 1)))
        return y_BYXO

    def initialize(self, generator: torch.Generator) -> None:
        self.product.initialize(generator, 2**0.5)  # GELU halves the variance
        self.norm.initialize()


class Stem(nn.Module):
    """The convolutions of an encoder, one after the other."""

    def __init__(self, vision: VisionConfig) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            Convolution(config, num_inputs, vision.norm_eps)
            for config, num_inputs in zip(vision.stem, vision.stem_inputs, strict=True)
        )

    def forward(self, x_BYXC: Tensor) -> Tensor:
        for convolution in cast("Iterable[Convolution]", self.convolutions):
            x_BYXC = convolution(x_BYXC)
        return x_BYXC

    def initialize(self, generator: torch.Generator) -> None:
        for convolution in cast("Iterable[Convolution]", self.convolutions):
            convolution.initialize(generator)
