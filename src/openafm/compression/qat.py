"""Quantization-aware training: the numerics of the deployed model, simulated over fp32 masters (report section 6).

    W~ = s (clamp(round(W / s + z), qmin, qmax) - z),   s = f max|W| / largest level,   f learnable

Nothing in `models` knows of it: Linears are replaced by ones that quantize their weight as they compute, keys and values
pass the attention's slot, the embedding is a torch parametrization.

Shapes: R outputs, C inputs of a matrix, V vocabulary, D model dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from openafm.compression.clip import find_scale
from openafm.compression.config import QATConfig
from openafm.compression.fake_quant_embedding import fake_quantize_embedding
from openafm.compression.keys_values import keep_in
from openafm.compression.low_bit import RoundedNorm, layer_linears, low_bit_linear, replace_linears
from openafm.compression.rounding import nearest_levels, scale_gradient
from openafm.models.decoder import Decoder
from openafm.models.layers import Linear


class QuantizationAwareness:
    """What a decoder under quantization-aware training needs to be told: how far the run is."""

    def __init__(self, config: QATConfig) -> None:
        self._config = config
        self.active = False
        self.advance(0.0)

    def advance(self, progress: float) -> None:
        """Round activations from the configured share of the run on; `progress` in [0, 1]."""
        self.active = self._config.activations == "int8_per_token" and progress >= self._config.activations_from


class FakeQuantLinear(Linear):
    """A Linear that computes with 2-bit weights while its fp32 master learns, and its clip with it.

    `clip` is f of the report's formula, a number or one for each output row.
    """

    def __init__(self, linear: Linear, config: QATConfig, awareness: QuantizationAwareness, name: str) -> None:
        nn.Module.__init__(self)
        self.in_dim, self.out_dim, self.bias = linear.in_dim, linear.out_dim, linear.bias
        self.weight = linear.weight
        self.level_set, self._awareness = config.levels, awareness
        groups_GN = self.weight.reshape(1, -1) if config.granularity == "tensor" else self.weight
        self._gradient_factor = 1 / math.sqrt(groups_GN.shape[1])
        shape = () if config.granularity == "tensor" else (self.out_dim,)
        if self.weight.is_meta:
            self.clip = nn.Parameter(torch.empty(shape, device="meta"))
            return
        scale_G = find_scale(config.clip, groups_GN, config.levels, name).scale_G
        self.clip = nn.Parameter((scale_G * config.levels.largest / groups_GN.detach().abs().amax(1)).reshape(shape))

    def scale(self) -> Tensor:
        """s of the report's formula: [] or [R]."""
        clip = scale_gradient(self.clip, self._gradient_factor).abs()
        largest = self.weight.detach().abs()
        largest = largest.amax() if clip.ndim == 0 else largest.amax(1)
        return clip * largest / self.level_set.largest

    def levels(self, scale: Tensor) -> Tensor:
        """The weights' levels in units of the scale, [R, C]."""
        return nearest_levels(self.weight, scale.reshape(-1, 1), self.level_set)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale()
        return low_bit_linear(x, self.levels(scale), scale, self.bias, self._awareness)


class FakeQuantEmbedding(nn.Module):
    """The 4-bit embedding's values as a parametrization of the fp32 one."""

    def forward(self, weight_VD: Tensor) -> Tensor:
        return fake_quantize_embedding(weight_VD)


def install(decoder: Decoder, config: QATConfig) -> QuantizationAwareness:
    """Simulate a 2-bit decoder over this one's weights, in place; clips start from the weights as they are.

    Raises:
        CompressionError: a matrix is all zero or not finite; the message names it.
    """
    awareness = QuantizationAwareness(config)
    replace_linears(
        decoder,
        {name: FakeQuantLinear(linear, config, awareness, name) for name, linear in layer_linears(decoder).items()},
    )
    decoder.norm = RoundedNorm(decoder.norm, awareness)
    keep_in(decoder, config.kv)
    if config.embedding == "int4_group32":
        parametrize.register_parametrization(decoder, "embedding", FakeQuantEmbedding(), unsafe=True)
    return awareness
