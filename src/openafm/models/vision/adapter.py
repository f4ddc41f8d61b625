"""The vision-language adaptation module: from an encoder's patches to a fixed number of image tokens (report 2.3).

The transformer layer sees the whole image, the convolution the neighborhood of a patch.

Shapes: B images, Y and X patches of a side, V encoder dim, D decoder dim, T pooled tokens of a side, K = 3 taps of a side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from openafm.models.layers import Linear
from openafm.models.vision.config import AdapterConfig
from openafm.models.vision.encoder import VisionLayer, VisionStates
from openafm.models.vision.layer_norm import LayerNorm
from openafm.models.vision.pooling import TAPS, pooling_of_taps


class BaseVisionAdapter(nn.Module, ABC):
    """Base of the adapters: from the states of a vision encoder to the embeddings of image tokens of a decoder."""

    @abstractmethod
    def forward(self, states: VisionStates, tokens_side: int | None = None) -> Tensor:
        """Return the embeddings of the image tokens row by row, [B, T * T, D]; T is `tokens_side`, or the usual one."""


class PooledConvolution(nn.Module):
    """A 3x3 convolution with zero padding, then average pooling to a grid of tokens, as two small matrix products.

    Both are linear, so the inputs of each of the nine taps are pooled first, and the product with the weights runs for the
    tokens instead of the patches: a twelfth of the operations from 42 x 42 patches to 12 x 12 tokens. The cells are those
    of `torch.nn.functional.adaptive_avg_pool2d`.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.taps = Linear(TAPS * TAPS * dim, dim, bias=True)

    def forward(self, x_BYXD: Tensor, tokens_side: int) -> Tensor:
        """Return tokens_BTTD of an image grid."""
        rows_TKY, columns_TKX = (
            torch.from_numpy(pooling_of_taps(side, tokens_side)).to(x_BYXD) for side in x_BYXD.shape[1:3]
        )
        x_BTKXD = torch.einsum("tky,byxd->btkxd", rows_TKY, x_BYXD)
        x_BTTKKD = torch.einsum("slx,btkxd->btskld", columns_TKX, x_BTKXD)
        tokens_BTTD: Tensor = self.taps(x_BTTKKD.flatten(-3))
        return tokens_BTTD


class VisionAdapter(BaseVisionAdapter):
    """See `AdapterConfig`."""

    def __init__(self, config: AdapterConfig, vision_dim: int, decoder_dim: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.layer = VisionLayer(config.layer, vision_dim, config.norm_eps)
        self.norm = LayerNorm(vision_dim, config.norm_eps)
        self.projection = Linear(vision_dim, decoder_dim, bias=True)
        self.convolution = PooledConvolution(decoder_dim)
        if not self.projection.weight.is_meta:
            self.initialize(seed)

    def forward(self, states: VisionStates, tokens_side: int | None = None) -> Tensor:
        num_registers = states.registers_BRD.shape[1]
        x_BTV = torch.cat((states.registers_BRD, states.patches_BYXD.flatten(1, 2)), dim=1)
        x_BTV = self.norm(self.layer(x_BTV, num_registers, 1))
        x_BYXD = self.projection(x_BTV[:, num_registers:]).unflatten(1, states.patches_BYXD.shape[1:3])
        return self.convolution(x_BYXD, tokens_side or self.config.tokens_side).flatten(1, 2)

    def initialize(self, seed: int) -> None:
        generator = torch.Generator(device=self.projection.weight.device).manual_seed(seed)
        self.layer.initialize(generator, 2**-0.5)
        self.norm.initialize()
        self.projection.initialize(generator)
        # Token embeddings have this standard deviation: images enter the decoder at the same scale.
        self.convolution.taps.initialize(generator, 0.02)
