"""Numerics for the native engine that fit a model: groups of 4 or 8 bits by the widths of its matrices, or bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from openafm.compression.errors import CompressionError
from openafm.compression.grouped import FORMATS
from openafm.compression.numerics import GroupedNumerics, MatrixNumerics, Numerics
from openafm.models.config import DecoderConfig

Weights: TypeAlias = Literal["int4", "int8", "bf16"]
_GROUPS: dict[str, tuple[GroupedNumerics, ...]] = {  # the first one whose groups divide the inputs
    "int4": ("int4_group64", "int4_group32"),
    "int8": ("int8_group128", "int8_group64", "int8_group32"),
}
_EMBEDDINGS: dict[str, tuple[GroupedNumerics, ...]] = {"int4": ("int4_group32",), "int8": _GROUPS["int8"]}


def native_numerics(config: DecoderConfig, weights: Weights) -> Numerics:
    """Return numerics that the native engine computes: these weights and embedding, 8-bit activations, keys and values.

    Matrices whose inputs do not divide into the usual groups have smaller ones. bf16 weights multiply fp32 activations.

    Raises:
        CompressionError: a width of the model is not a multiple of 32.
        UncompressibleModelError: the layers have stacks of matrices, those of tracks or experts.
    """
    if weights == "bf16":
        return Numerics(weights="bfloat16", embedding="bfloat16", kv="int8_per_token_head")
    formats = {name: _fitting(_GROUPS[weights], width, name) for name, width in _input_widths(config).items()}
    usual = _GROUPS[weights][0]
    return Numerics(
        weights=usual,
        embedding=_fitting(_EMBEDDINGS[weights], config.dim, "the embedding"),
        activations="int8_per_token",
        kv="int8_per_token_head",
        exceptions=tuple(MatrixNumerics(prefix=name, weights=format) for name, format in formats.items() if format != usual),
    )


def _fitting(formats: Sequence[GroupedNumerics], width: int, name: str) -> GroupedNumerics:
    for format in formats:
        if width % FORMATS[format].group == 0:
            return format
    raise CompressionError(f"{name} has {width} inputs; groups of 4 and 8 bits need a multiple of 32: keep 16 bits")


def _input_widths(config: DecoderConfig) -> dict[str, int]:
    """Return the number of inputs of every matrix of the layers by name."""
    import torch

    from openafm.compression.low_bit import layer_linears

    with torch.device("meta"):
        return {name: linear.in_dim for name, linear in layer_linears(config.build()).items()}
