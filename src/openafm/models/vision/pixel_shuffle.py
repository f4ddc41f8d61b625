"""The adapter of InternVL: the states of neighboring patches joined, then a small network.

Shapes: B images, Y and X patches of a side, V encoder dim, D decoder dim, F factor, T tokens of a side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.models.attention.spans import SpanError
from openafm.models.layers import Linear
from openafm.models.vision.adapter import BaseVisionAdapter
from openafm.models.vision.encoder import VisionStates
from openafm.models.vision.layer_norm import LayerNorm
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig


class PixelShuffleAdapter(BaseVisionAdapter):
    """See `PixelShuffleAdapterConfig`."""

    def __init__(self, config: PixelShuffleAdapterConfig, vision_dim: int, decoder_dim: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        joined = vision_dim * config.factor**2
        self.norm = LayerNorm(joined, config.norm_eps)
        self.up, self.down = Linear(joined, decoder_dim, bias=True), Linear(decoder_dim, decoder_dim, bias=True)
        if not self.up.weight.is_meta:
            self.initialize(seed)

    def forward(self, states: VisionStates, tokens_side: int | None = None) -> Tensor:
        factor, grid = self.config.factor, states.patches_BYXD.shape[1]
        if grid % factor or tokens_side not in (None, grid // factor):
            raise SpanError(f"{grid} patches of a side give {grid / factor:g} tokens of a side, not {tokens_side}")
        x_BTTFFV = states.patches_BYXD.unflatten(2, (-1, factor)).unflatten(1, (-1, factor)).transpose(2, 3)
        tokens_BTTD: Tensor = self.down(F.gelu(self.up(self.norm(x_BTTFFV.flatten(3)))))
        return tokens_BTTD.flatten(1, 2)

    def initialize(self, seed: int) -> None:
        """Draw initial weights. Token embeddings have a standard deviation of 0.02, and so has the last layer."""
        generator = torch.Generator(device=self.up.weight.device).manual_seed(seed)
        self.norm.initialize()
        self.up.initialize(generator)
        self.down.initialize(generator, 0.02)
