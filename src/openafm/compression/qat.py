"""Quantization-aware training: the numerics of the deployed model, simulated with fp32 master weights (report section 6).

    W~ = s (clamp(round(W / s + z), qmin, qmax) - z),   s = f max|W| / largest level,   f learnable

Modules in `models` are unchanged: Linears are replaced by ones that quantize their weight in the forward pass, keys and
values are rounded in the attention's slot, the embedding is a torch parametrization.

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
    """The state of quantization-aware training that depends on the progress of the run."""

    def __init__(self, config: QATConfig) -> None:
        self._config = config
        self.active = False
        self.advance(0.0)

    def advance(self, progress: float) -> None:
        """Set the progress of the run, in [0, 1]; activations are rounded after the configured fraction."""
        self.active = self._config.activations == "int8_per_token" and progress >= self._config.activations_from


class FakeQuantLinear(Linear):
    """A Linear that computes with 2-bit weights and trains its fp32 master weight and its clip.

    `clip` is f of the report's formula: one number, or one for each output row.
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
        """Return s of the report's formula: [] or [R]."""
        clip = scale_gradient(self.clip, self._gradient_factor).abs()
        largest = self.weight.detach().abs()
        largest = largest.amax() if clip.ndim == 0 else largest.amax(1)
        return clip * largest / self.level_set.largest

    def levels(self, scale: Tensor) -> Tensor:
        """Return the levels of the weights in units of the scale, [R, C]."""
        return nearest_levels(self.weight, scale.reshape(-1, 1), self.level_set)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale()
        return low_bit_linear(x, self.levels(scale), scale, self.bias, self._awareness)


class FakeQuantEmbedding(nn.Module):
    """The values of the 4-bit embedding, as a parametrization of the fp32 embedding."""

    def forward(self, weight_VD: Tensor) -> Tensor:
        return fake_quantize_embedding(weight_VD)


def install(decoder: Decoder, config: QATConfig) -> QuantizationAwareness:
    """Make a decoder simulate 2-bit numerics, in place; clips are initialized from its weights.

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
