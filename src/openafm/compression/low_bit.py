"""Products with 2-bit matrices. Training's simulation and inference share one function, so both give the same bits.

Levels are multiples of 0.5 and rounded activations are integers up to 127, so sums of their products are exact in fp32 in
any order for rows with fewer than 2^24 / 381 entries. Scales are multiplied once, at the end.

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
from openafm.models.feed_forward.experts import Experts
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.layers import Linear, RMSNorm


class ActivationRounding(Protocol):
    """Whether inputs of matrices are rounded to 8 bits; shared by all modules of a decoder."""

    active: bool


def low_bit_linear(
    x: Tensor, levels_RC: Tensor, scale: Tensor, bias_R: Tensor | None, rounding: ActivationRounding
) -> Tensor:
    """Return x (scale levels)^T + bias in the dtype of x. `scale` is fp32: one number, or one for each output."""
    levels_RC = levels_RC.to(x.dtype)
    if rounding.active:
        rounded = round_per_token(x)
        y = F.linear(rounded.integers, levels_RC).float() * (rounded.scale * scale)
    else:
        y = F.linear(x, levels_RC).float() * scale
    return (y if bias_R is None else y + bias_R).to(x.dtype)


class LowBitLinear(Linear):
    """A Linear with 2-bit weights for inference: levels and scale, no master weight."""

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
    """The norm before the head, with its output rounded to 8 bits."""

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
    """Replace modules by dotted name."""
    for name, module in build.items():
        parent, _, child = name.rpartition(".")
        setattr(decoder.get_submodule(parent), child, module)


def check_single_matrices(config: DecoderConfig, way_out: str) -> None:
    """Check that all matrices of the layers are Linears, so that none would stay uncompressed.

    Raises:
        UncompressibleModelError: the model has parallel tracks or mixtures of experts; the message ends with `way_out`.
    """
    kinds = ["parallel tracks"] if config.tracks is not None else []
    if any(isinstance(layer.feed_forward, ExpertsConfig) for layer in config.layers):
        kinds.append("mixtures of experts")
    if kinds:
        raise UncompressibleModelError(
            f"models with {' and '.join(kinds)} have stacks of matrices, which this format does not support; {way_out}"
        )


def layer_linears(decoder: Decoder) -> dict[str, Linear]:
    """Return every Linear of the layers by dotted name: all their matrices.

    Raises:
        UncompressibleModelError: the layers have stacks of matrices, those of tracks or experts.
    """
    check_single_matrices(decoder.config, "use ASTC without calibration: --format astc --no-calibration")
    return {
        name: module for name, module in decoder.named_modules() if isinstance(module, Linear) and name.startswith("layers.")
    }


def layer_matrices(decoder: Decoder) -> dict[str, Tensor]:
    """Return every matrix of the layers by its name in the state dict; tracks and experts as stacks [..., R, C].

    Routers are left out, because their choices depend on small differences.
    """
    matrices: dict[str, Tensor] = {}
    for name, module in decoder.named_modules():
        if isinstance(module, Linear) and name.startswith("layers."):
            matrices[f"{name}.weight"] = module.weight
        elif isinstance(module, Experts):
            matrices |= {f"{name}.{part}": weight for part, weight in module.named_parameters(recurse=False)}
    return matrices
