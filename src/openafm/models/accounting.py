"""What a decoder costs, by arithmetic on its config. Imports no tensor library.

A multiplication with its addition counts as two floating-point operations. Norms, rotation and softmax are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from openafm.models.config import DecoderConfig, LayerConfig

KVNumerics: TypeAlias = Literal["float32", "bfloat16", "int8_per_token_head"]
_PAYLOAD_BYTES: dict[KVNumerics, int] = {"float32": 4, "bfloat16": 2, "int8_per_token_head": 1}
_SCALE_BYTES: dict[KVNumerics, int] = {"float32": 0, "bfloat16": 0, "int8_per_token_head": 2}


def num_parameters(config: DecoderConfig) -> int:
    """Weights of the model, counted on the meta device: no storage is used, whatever the size."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build().parameters())


def active_parameters(config: DecoderConfig) -> int:
    """Weights that one token passes: all but the experts that it is not sent to."""
    idle = sum(layer.feed_forward.idle_parameters(config.dim) for layer in config.layers)
    return num_parameters(config) - config.num_tracks * idle


def flops_per_token(config: DecoderConfig, num_keys: float) -> float:
    """Floating-point operations of one token's forward pass, head included, when it could see `num_keys` keys.

    Training takes three times as many: the backward pass costs two forward passes.
    """
    layers = sum(
        layer.attention.store_flops(config.dim)
        + _read_flops(layer, config.dim)
        + _pair_flops(layer) * min(num_keys, layer.attention.window or num_keys)
        for layer in config.layers
    )
    return config.num_tracks * layers + _head_flops(config)


def training_flops(config: DecoderConfig, lengths: Iterable[int], num_targets: int) -> int:
    """Floating-point operations of forward and backward over packed documents of these lengths.

    From the last keys and values that are stored on, only the `num_targets` positions that carry loss pass; how many keys
    those see is taken from the mean of all positions.
    """
    lengths = list(lengths)
    num_tokens = sum(lengths)
    layers, boundary = 0.0, config.num_prefill_layers - 1
    for index, layer in enumerate(config.layers):
        share = 1.0 if index < boundary else num_targets / max(num_tokens, 1)
        num_pairs = sum(layer.attention.mask.num_pairs(length) for length in lengths)
        layers += num_tokens * layer.attention.store_flops(config.dim)
        layers += share * (num_tokens * _read_flops(layer, config.dim) + num_pairs * _pair_flops(layer))
    return round(3 * (config.num_tracks * layers + num_targets * _head_flops(config)))


@dataclass(frozen=True, kw_only=True)
class KVBytes:
    """Bytes of keys and values: the numbers themselves, and their scales (one in fp16 for each token and head of int8)."""

    payload: int
    scales: int

    @property
    def total(self) -> int:
        return self.payload + self.scales


def kv_bytes_per_token(config: DecoderConfig, numerics: KVNumerics) -> KVBytes:
    """What one more token adds to the cache while every layer keeps it; sharing layers add nothing (report 2.1)."""
    vectors = {index: 2 * config.kv_heads(index) for index in config.own_layers}  # keys and values, of each head
    numbers = sum(count * config.layers[index].attention.head_dim for index, count in vectors.items())
    return KVBytes(payload=numbers * _PAYLOAD_BYTES[numerics], scales=sum(vectors.values()) * _SCALE_BYTES[numerics])


def kv_bytes(config: DecoderConfig, numerics: KVNumerics, num_tokens: int) -> int:
    """Bytes of the cache of `num_tokens`, scales included. A layer with a window keeps no more tokens than it sees."""
    total = 0
    for index in config.own_layers:
        attention = config.layers[index].attention
        kept = num_tokens if attention.window is None else min(num_tokens, attention.window)
        vector_bytes = attention.head_dim * _PAYLOAD_BYTES[numerics] + _SCALE_BYTES[numerics]
        total += kept * 2 * config.kv_heads(index) * vector_bytes
    return total


def all_global(config: DecoderConfig) -> DecoderConfig:
    """The same model whose layers all see everything: what windows are compared with."""
    layers = (replace(layer, attention=replace(layer.attention, window=None)) for layer in config.layers)
    return replace(config, layers=tuple(layers))


def _read_flops(layer: LayerConfig, dim: int) -> int:
    """Of one token, all but its keys and values and the pairs it forms with others'."""
    return layer.attention.read_flops(dim) + layer.feed_forward.linear_flops(dim)


def _pair_flops(layer: LayerConfig) -> int:
    """Of one query and one key: the score, and the value's share in the output."""
    return 4 * layer.attention.num_heads * layer.attention.head_dim


def _head_flops(config: DecoderConfig) -> int:
    return 2 * config.vocab_size * config.dim
