"""Rows of the table: methods that turn a trained base model into a compressed decoder and its bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from compressing.trained import Base, Data, Size
from torch import Tensor

from openafm.compression.low_bit import layer_linears
from openafm.compression.post_training.calibration import compress_linears
from openafm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Inputs of a method."""

    base: Base
    data: Data
    size: Size


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """A decoder with compressed values, and all bits per number of the compressed part."""

    decoder: Decoder
    bits_per_weight: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method. `of` is the part that bits are counted over: the layers' matrices, the embedding, or keys and values.

    The loss gap is to the base, or to the control: the base trained for as many more steps in full precision.
    """

    method: str
    of: Literal["layers", "embedding", "keys and values"]
    compress: Callable[[Setting], Compressed]
    against: Literal["base", "control"] = "base"


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of a matrix after compression, and its stored bits."""

    weight: Tensor
    bits: float


def each_matrix(decoder: Decoder, compress: Callable[[str, Tensor], Values]) -> Compressed:
    """Return a copy of a decoder with every matrix of its layers compressed independently."""
    decoder, bits, size = copy.deepcopy(decoder), 0.0, 0
    with torch.no_grad():
        for name, linear in layer_linears(decoder).items():
            values = compress(name, linear.weight.detach().clone())
            linear.weight.copy_(values.weight)
            bits, size = bits + values.bits, size + linear.weight.numel()
    return Compressed(decoder=decoder, bits_per_weight=bits / size)


def layer_by_layer(setting: Setting, compress: Callable[[str, Tensor, Tensor], Values]) -> Compressed:
    """Return a copy compressed with calibration: `compress` also takes the second moment of the matrix's inputs.

    Inputs of a layer are the outputs of the compressed layers before it.
    """
    decoder, bits, size = copy.deepcopy(setting.base.decoder), 0.0, 0

    def counted(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Tensor:
        nonlocal bits, size
        values = compress(name, weight_RC, moment_CC)
        bits, size = bits + values.bits, size + weight_RC.numel()
        return values.weight

    compress_linears(decoder, setting.data.calibration, counted)
    return Compressed(decoder=decoder, bits_per_weight=bits / size)
