"""Adapters initialized with the top singular vectors of each weight; only the residual is compressed.

This is PiSSA's initialization (arXiv 2404.02948), which the report uses before ASTC (report 6). The error of a compressed
residual scales with its norm, for any format. The adapter's bits count towards the size of the model.
"""

from __future__ import annotations

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
    """The rank exceeds the number of singular vectors of a matrix."""


class NonFiniteWeightError(OpenAFMError):
    """A weight contains NaN or infinity and has no singular vectors."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """weight = scale * b a + residual: a [..., rank, in], b [..., out, rank], residual [..., out, in]."""

    a: Tensor
    b: Tensor
    residual: Tensor


@torch.no_grad()
def split(weight: Tensor, rank: int, scale: float) -> Split:
    """Return the best approximation of rank `rank` of each matrix of `weight` [..., out, in], and the residual.

    Computes in fp32 or finer. Leading dims are experts and tracks, with `rank` vectors each. Both a and b are scaled by the
    square roots of the singular values.

    Raises:
        SingularRankError: `rank` is not between 1 and the smaller side of a matrix.
        NonFiniteWeightError: the weight contains NaN or infinity.
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
    """Install an adapter of the targets' top singular vectors and leave the residuals in the decoder.

    Outputs are unchanged up to fp32 rounding. To compress the base: keep `adapter_weights`, `remove` the adapter, compress
    the residual, and load the adapter onto it. On an error the decoder is unchanged.

    Raises:
        AdapterInstalledError: the decoder already has an adapter.
        AdapterTargetError: the decoder has no such target, or the target is compressed already.
        SingularRankError: a target is smaller than the rank.
        NonFiniteWeightError: a target contains NaN or infinity.
    """
    linears = target_linears(decoder, config)
    for name, linear in linears.items():
        if type(linear) is not Linear:
            raise AdapterTargetError(
                f"'{name}' is a {type(linear).__name__}; move singular vectors before compression, out of a plain Linear"
            )
        _check(linear.weight, config.rank, f"'{name}.weight'")
    for name, lora in attach(decoder, config).items():
        parts = split(linears[name].weight, config.rank, config.scale)
        lora.a.copy_(_as_stored(parts.a, config))
        lora.b.copy_(_as_stored(parts.b, config))
        linears[name].weight.sub_(config.scale * (lora.b @ lora.a))


def _as_stored(weight: Tensor, config: LoRAConfig) -> Tensor:
    """Return the weight rounded to the stored precision, if finite: the residual then includes the rounding error."""
    rounded = weight.to(getattr(torch, config.precision)).float()
    return rounded if bool(rounded.isfinite().all()) else weight


def adapter_bits_per_weight(decoder: DecoderConfig, config: LoRAConfig, bits: int = 16) -> float:
    """Return the bits that an adapter of `bits` per number adds per weight of all Linears of the layers.

    Raises:
        AdapterTargetError: the decoder has no such target.
    """
    with torch.device("meta"):
        model = decoder.build()
    num_weights = sum(linear.weight.numel() for linear in target_linears(model, LoRAConfig()).values())
    return bits * num_adapter_parameters(decoder, config) / num_weights


def _check(weight: Tensor, rank: int, name: str) -> None:
    most = min(weight.shape[-2:])
    if not 0 < rank <= most:
        raise SingularRankError(
            f"{name} of shape {list(weight.shape)} has {most} singular vectors; use a rank from 1 to {most}, got {rank}"
        )
    if not weight.isfinite().all():
        raise NonFiniteWeightError(f"{name} contains NaN or infinity and has no singular vectors; train the model again")
