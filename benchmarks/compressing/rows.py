"""What a row of the table is: a method, from a trained base to a decoder to judge and the bits it takes."""

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
    """What a method may work with."""

    base: Base
    data: Data
    size: Size


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """A decoder that computes as the compressed one does, and bits per number of what the row compresses, all counted."""

    decoder: Decoder
    bits_per_weight: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """`of` is what the bits are counted over: the matrices of the layers, the embedding, or keys and values.

    The loss gap is to the base, or to the control: the base trained in full precision for as many more steps.
    """

    method: str
    of: Literal["layers", "embedding", "keys and values"]
    compress: Callable[[Setting], Compressed]
    against: Literal["base", "control"] = "base"


@dataclass(frozen=True, kw_only=True)
class Values:
    """A matrix as it is after compression, and the bits that are stored for it."""

    weight: Tensor
    bits: float


def each_matrix(decoder: Decoder, compress: Callable[[str, Tensor], Values]) -> Compressed:
    """A copy of a decoder with every matrix of its layers compressed by itself."""
    decoder, bits, size = copy.deepcopy(decoder), 0.0, 0
    with torch.no_grad():
        for name, linear in layer_linears(decoder).items():
            values = compress(name, linear.weight.detach().clone())
            linear.weight.copy_(values.weight)
            bits, size = bits + values.bits, size + linear.weight.numel()
    return Compressed(decoder=decoder, bits_per_weight=bits / size)


def layer_by_layer(setting: Setting, compress: Callable[[str, Tensor, Tensor], Values]) -> Compressed:
    """The same with calibration: `compress` is also given the second moment of the matrix's inputs.

    Inputs of a layer are what the layers before it put out when compressed.
    """
    decoder, bits, size = copy.deepcopy(setting.base.decoder), 0.0, 0

    def counted(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Tensor:
        nonlocal bits, size
        values = compress(name, weight_RC, moment_CC)
        bits, size = bits + values.bits, size + weight_RC.numel()
        return values.weight

    compress_linears(decoder, setting.data.calibration, counted)
    return Compressed(decoder=decoder, bits_per_weight=bits / size)
