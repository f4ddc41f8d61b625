"""Singular vectors first: what a weight has most of goes into the adapter, and only the rest is compressed.

PiSSA's start (arXiv 2404.02948), used by the report before ASTC (report 6). The error of a compressed residual shrinks with
the square root of the energy left in it, for any format; what the adapter costs in bits must be counted beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openafm.adapters.config import LoRAConfig, num_adapter_parameters
from openafm.adapters.lora import AdapterTargetError, attach, target_linears
from openafm.core.errors import OpenAFMError, UsageError
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.layers import Linear


class SingularRankError(UsageError):
    """More singular vectors are asked for than a matrix has."""


class NonFiniteWeightError(OpenAFMError):
    """A weight holds NaN or infinity and has no singular vectors."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """weight = scale * b a + residual: a [..., rank, in], b [..., out, rank], residual [..., out, in]."""

    a: Tensor
    b: Tensor
    residual: Tensor


@torch.no_grad()
def split(weight: Tensor, rank: int, scale: float) -> Split:
    """Take the best approximation of rank `rank` out of each matrix of `weight` [..., out, in], in fp32 or finer.

    Leading dims are experts and tracks, each with its own `rank` vectors. The singular values are shared evenly by a and b.

    Raises:
        SingularRankError: `rank` is not between 1 and the smaller side of a matrix.
        NonFiniteWeightError: the weight holds NaN or infinity.
    """
    _check(weight, rank, "the weight")
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    u, values, vh = torch.linalg.svd(weight, full_matrices=False)
    root = (values[..., :rank] / scale).sqrt()
    a = root[..., :, None] * vh[..., :rank, :]
    b = root[..., None, :] * u[..., :, :rank]
    return Split(a=a, b=b, residual=weight - scale * (b @ a))


@torch.no_grad()
def move_singular_vectors(decoder: Decoder, config: LoRAConfig) -> None:
    """Install an adapter made of the targets' top singular vectors and leave the residuals in the decoder.

    The two together compute what the decoder did, up to fp32 rounding. To compress the base, keep `adapter_weights`,
    `remove` the adapter, compress what is left, and load the adapter onto that.

    Raises:
        AdapterInstalledError: the decoder carries an adapter already.
        AdapterTargetError: a target that the decoder does not have, or that is compressed already.
        SingularRankError: a target is smaller than the rank.
        NonFiniteWeightError: a target holds NaN or infinity. In all these cases the decoder is as it was.
    """
    linears = target_linears(decoder, config)
    for name, linear in linears.items():
        if type(linear) is not Linear:
            raise AdapterTargetError(
                f"'{name}' is a {type(linear).__name__}; singular vectors are moved before compression, from plain weights"
            )
        _check(linear.weight, config.rank, f"'{name}.weight'")
    for name, lora in attach(decoder, config).items():
        parts = split(linears[name].weight, config.rank, config.scale)
        lora.a.copy_(_as_stored(parts.a, config))
        lora.b.copy_(_as_stored(parts.b, config))
        linears[name].weight.sub_(config.scale * (lora.b @ lora.a))


def _as_stored(weight: Tensor, config: LoRAConfig) -> Tensor:
    """Rounded as the adapter's file will round it, where that is possible: the residual then makes up for it."""
    rounded = weight.to(getattr(torch, config.precision)).float()
    return rounded if bool(rounded.isfinite().all()) else weight


def adapter_bits_per_weight(decoder: DecoderConfig, config: LoRAConfig, bits: int = 16) -> float:
    """What an adapter of `bits` per number adds to the bits per weight of all Linears of the layers, adapted or not.

    Raises:
        AdapterTargetError: a target that the decoder does not have.
    """
    with torch.device("meta"):
        model = decoder.build()
    num_weights = sum(linear.weight.numel() for linear in target_linears(model, LoRAConfig()).values())
    return bits * num_adapter_parameters(decoder, config) / num_weights


def stacked_adapter_parameters(shape: Sequence[int], rank: int) -> int:
    """Weights of an adapter of `rank` for each matrix of a stack of shape [..., out, in]: experts, tracks, or just one."""
    *leading, out_dim, in_dim = shape
    return math.prod(leading) * rank * (out_dim + in_dim)


def _check(weight: Tensor, rank: int, name: str) -> None:
    most = min(weight.shape[-2:])
    if not 0 < rank <= most:
        raise SingularRankError(f"{name} of shape {list(weight.shape)} has {most} singular vectors, asked for {rank}")
    if not weight.isfinite().all():
        raise NonFiniteWeightError(f"{name} holds NaN or infinity and has no singular vectors; the model is broken")
