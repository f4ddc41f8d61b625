"""Rows without training: rounding in groups, HQQ, GPTQ; the embedding; keys and values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.util import find_spec

import torch
from compressing.rows import Compressed, Row, Setting, Values, each_matrix, layer_by_layer
from torch import Tensor

from openafm.compression.keys_values import IntPerTokenHead
from openafm.compression.post_training.config import (
    ClippedConfig,
    GPTQConfig,
    GroupConfig,
    HalfQuadraticConfig,
    RoundToNearestConfig,
)
from openafm.compression.post_training.groups import GroupQuantized
from openafm.models.attention.grouped_query import KeysValues
from openafm.models.decoder import Decoder

GROUPS = ((4, 32), (4, 128), (3, 32), (3, 64), (2, 64))  # bits and group size
KV_BITS = (8, 6, 4, 3)


def post_training_rows() -> list[Row]:
    rows = [
        Row(method=f"{title} {bits} bits, groups of {group}", of="layers", compress=_rounded(config(bits=bits, group=group)))
        for bits, group in GROUPS
        for title, config in (
            ("RTN", RoundToNearestConfig),
            ("RTN clipped", ClippedConfig),
            ("half-quadratic", HalfQuadraticConfig),
        )
    ]
    if find_spec("hqq") is not None:
        rows += [
            Row(method=f"HQQ {bits} bits, groups of {group}", of="layers", compress=_hqq(bits, group))
            for bits, group in GROUPS
        ]
    rows += [
        Row(method=f"GPTQ {bits} bits, groups of {group}", of="layers", compress=_gptq(GPTQConfig(bits=bits, group=group)))
        for bits, group in GROUPS
    ]
    by_activation = GPTQConfig(bits=2, group=64, order="activation")
    rows.append(Row(method="GPTQ 2 bits, groups of 64, by activation", of="layers", compress=_gptq(by_activation)))
    rows += [
        Row(
            method=f"embedding {bits} bits, groups of 32",
            of="embedding",
            compress=_embedding(ClippedConfig(bits=bits, group=32)),
        )
        for bits in (8, 4)
    ]
    rows += [Row(method=f"KV {bits} bits per token and head", of="keys and values", compress=_kv(bits)) for bits in KV_BITS]
    return rows


def with_kv_bits(decoder: Decoder, bits: int) -> Compressed:
    """Return a copy with keys and values of `bits` and an fp16 scale for each token and head."""
    decoder = copy.deepcopy(decoder)
    head_dims = []
    for module in decoder.modules():
        if isinstance(module, KeysValues):
            module.slot = IntPerTokenHead(bits)
            head_dims.append(module.head_dim)
    return Compressed(decoder=decoder, bits_per_weight=bits + 16 * len(head_dims) / sum(head_dims))


def _kv(bits: int) -> Callable[[Setting], Compressed]:
    return lambda setting: with_kv_bits(setting.base.decoder, bits)


def _rounded(config: GroupConfig) -> Callable[[Setting], Compressed]:
    def compress(name: str, weight_RC: Tensor) -> Values:
        return _values(config.quantize(weight_RC.numpy(), name))

    return lambda setting: each_matrix(setting.base.decoder, compress)


def _gptq(config: GPTQConfig) -> Callable[[Setting], Compressed]:
    def compress(name: str, weight_RC: Tensor, moment_CC: Tensor) -> Values:
        return _values(config.quantize(weight_RC, moment_CC, name))

    return lambda setting: layer_by_layer(setting, compress)


def _hqq(bits: int, group: int) -> Callable[[Setting], Compressed]:
    """The quantizer of the package; scale and zero are rounded to fp16 and counted as such."""
    from hqq.core.quantize import Quantizer

    def compress(name: str, weight_RC: Tensor) -> Values:
        packed, meta = Quantizer.quantize(
            weight_RC, nbits=bits, group_size=group, axis=1, device="cpu", compute_dtype=torch.float32
        )
        meta |= {key: meta[key].half().float() for key in ("scale", "zero")}
        return Values(weight=Quantizer.dequantize(packed, meta), bits=weight_RC.numel() * (bits + 32 / group))

    return lambda setting: each_matrix(setting.base.decoder, compress)


def _embedding(config: GroupConfig) -> Callable[[Setting], Compressed]:
    def compress(setting: Setting) -> Compressed:
        decoder = copy.deepcopy(setting.base.decoder)
        quantized = config.quantize(decoder.embedding.detach().numpy(), "embedding")
        with torch.no_grad():
            decoder.embedding.copy_(torch.from_numpy(quantized.dequantize()))
        return Compressed(decoder=decoder, bits_per_weight=quantized.bits_per_weight)

    return compress


def _values(quantized: GroupQuantized) -> Values:
    return Values(weight=torch.from_numpy(quantized.dequantize()), bits=quantized.bits_per_weight * quantized.codes_RC.size)
