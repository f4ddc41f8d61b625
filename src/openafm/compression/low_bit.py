"""Products with 2-bit matrices, one function for training's simulation and for inference, so that both give the same bits.

Levels are multiples of a half and rounded activations are integers up to 127, so their products' sums are exact in fp32 in
any order as long as rows have fewer than 2^24 / 381 entries; scales are multiplied once, at the end.

Shapes: R outputs, C inputs.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from openafm.compression.errors import UncompressibleModelError
from openafm.compression.rounding import round_per_token
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.experts import Experts
from openafm.models.experts_config import ExpertsConfig
from openafm.models.layers import Linear, RMSNorm


class ActivationRounding(Protocol):
    """Whether what enters matrices is rounded to 8 bits: one object for a whole decoder."""

    active: bool


def low_bit_linear(
    x: Tensor, levels_RC: Tensor, scale: Tensor, bias_R: Tensor | None, rounding: ActivationRounding
) -> Tensor:
    """x (scale levels)^T + bias in the dtype of x. `scale` is fp32, a number or one for each output."""
    levels_RC = levels_RC.to(x.dtype)
    if rounding.active:
        rounded = round_per_token(x)
        y = F.linear(rounded.integers, levels_RC).float() * (rounded.scale * scale)
    else:
        y = F.linear(x, levels_RC).float() * scale
    return (y if bias_R is None else y + bias_R).to(x.dtype)


class LowBitLinear(Linear):
    """A 2-bit matrix at inference: levels in the compute dtype and the scale beside them; no master weight."""

    levels: Tensor
    scale: Tensor

    def __init__(self, linear: Linear, levels_RC: Tensor, scale: Tensor, rounding: ActivationRounding) -> None:
        nn.Module.__init__(self)
        self.in_dim, self.out_dim, self.bias = linear.in_dim, linear.out_dim, linear.bias
        self._rounding = rounding
        self.register_buffer("levels", levels_RC)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return low_bit_linear(x, self.levels, self.scale, self.bias, self._rounding)


class RoundedNorm(RMSNorm):
    """The norm before the head, its output rounded as the head's input is."""

    def __init__(self, norm: RMSNorm, rounding: ActivationRounding) -> None:
        nn.Module.__init__(self)
        self.eps, self.weight, self.rounding = norm.eps, norm.weight, rounding

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if not self.rounding.active:
            return y
        rounded = round_per_token(y)
        return (rounded.integers.float() * rounded.scale).to(x.dtype)


def replace_linears(decoder: nn.Module, build: dict[str, nn.Module]) -> None:
    """Put modules in the place of others, by dotted name."""
    for name, module in build.items():
        parent, _, child = name.rpartition(".")
        setattr(decoder.get_submodule(parent), child, module)


def check_single_matrices(config: DecoderConfig, way_out: str) -> None:
    """See that the matrices of a model's layers are Linears of one matrix each: half a compression is none.

    Raises:
        UncompressibleModelError: the model has parallel tracks or mixtures of experts; the message ends with `way_out`.
    """
    kinds = ["parallel tracks"] if config.tracks is not None else []
    if any(isinstance(layer.feed_forward, ExpertsConfig) for layer in config.layers):
        kinds.append("mixtures of experts")
    if kinds:
        raise UncompressibleModelError(
            f"models with {' and '.join(kinds)} cannot be compressed in this way, which takes single matrices and not stacks"
            f" of them; {way_out}"
        )


def layer_linears(decoder: Decoder) -> dict[str, Linear]:
    """Every Linear inside the layers by its dotted name: all their matrices.

    Raises:
        UncompressibleModelError: the layers have stacks of matrices, those of tracks or experts.
    """
    check_single_matrices(decoder.config, "use ASTC without calibration")
    return {
        name: module for name, module in decoder.named_modules() if isinstance(module, Linear) and name.startswith("layers.")
    }


def layer_matrices(decoder: Decoder) -> dict[str, Tensor]:
    """Every matrix of the layers by its name in the state dict, those of tracks and experts as stacks [..., R, C].

    All but routers, which choose by small differences.
    """
    matrices: dict[str, Tensor] = {}
    for name, module in decoder.named_modules():
        if isinstance(module, Linear) and name.startswith("layers."):
            matrices[f"{name}.weight"] = module.weight
        elif isinstance(module, Experts):
            matrices |= {f"{name}.{part}": weight for part, weight in module.named_parameters(recurse=False)}
    return matrices
