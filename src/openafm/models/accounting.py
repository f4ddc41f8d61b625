"""Parameters, floating-point operations and KV-cache bytes of a decoder, by arithmetic on its config.

The counts of layer parts are methods of their configs. Imports no tensor library, unless a part of another package has no
method of its own. A multiply-add is two operations; norms, rotation and softmax are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from openafm.models.config import DecoderConfig, LayerConfig, UntiedHeadConfig

KVNumerics: TypeAlias = Literal["float32", "bfloat16", "int8_per_token_head"]
_PAYLOAD_BYTES: dict[KVNumerics, int] = {"float32": 4, "bfloat16": 2, "int8_per_token_head": 1}
_SCALE_BYTES: dict[KVNumerics, int] = {"float32": 0, "bfloat16": 0, "int8_per_token_head": 2}


def num_parameters(config: DecoderConfig) -> int:
    """Return the number of weights of the model."""
    layers = config.num_tracks * sum(layer_parameters(layer, config.dim) for layer in config.layers)
    return layers + track_norm_parameters(config) + outside_parameters(config) + config.other_parameters()


def layer_parameters(layer: LayerConfig, dim: int) -> int:
    """Return the number of weights of a layer in one track."""
    return 2 * dim + layer.attention.num_parameters(dim) + layer.feed_forward.num_parameters(dim)


def track_norm_parameters(config: DecoderConfig) -> int:
    """Return the number of weights of the norms at the ends of track blocks."""
    if config.tracks is None or config.tracks.norm is None:
        return 0
    return config.num_tracks * config.dim * len(config.layers) // config.tracks.block_depth


def outside_parameters(config: DecoderConfig) -> int:
    """Return the number of weights of embedding, final norm and head."""
    matrices = 2 if isinstance(config.head, UntiedHeadConfig) else 1
    return matrices * config.vocab_size * config.dim + config.dim


def active_parameters(config: DecoderConfig) -> int:
    """Return the number of weights that one token passes: all but those of experts that are not chosen."""
    idle = sum(layer.feed_forward.idle_parameters(config.dim) for layer in config.layers)
    return num_parameters(config) - config.num_tracks * idle


def flops_per_token(config: DecoderConfig, num_keys: float) -> float:
    """Return the operations of one token's forward pass, head included, with `num_keys` keys before it.

    Training takes three times as many: the backward pass costs two forward passes.
    """
    layers = sum(
        layer.attention.store_flops(config.dim)
        + _read_flops(layer, config.dim)
        + layer.attention.pair_flops * min(num_keys, layer.attention.window or num_keys)
        for layer in config.layers
    )
    return config.num_tracks * layers + _head_flops(config)


def training_flops(config: DecoderConfig, lengths: Iterable[int], num_targets: int, repeated: Iterable[int] = ()) -> int:
    """Return the operations of forward and backward pass over packed documents of these lengths.

    `repeated` are lengths of beginnings that several documents share: those that are not computed again.

    Beyond the last layer that stores keys and values only the `num_targets` positions that carry loss are computed. The
    number of keys that they see is approximated by the mean over all positions.
    """
    lengths, repeated = list(lengths), list(repeated)
    num_tokens = sum(lengths) - sum(repeated)
    layers, boundary = 0.0, config.num_prefill_layers - 1
    for index, layer in enumerate(config.layers):
        share = 1.0 if index < boundary else num_targets / max(num_tokens, 1)
        pairs, repeated_pairs = (sum(map(layer.attention.mask.num_pairs, each)) for each in (lengths, repeated))
        num_pairs = pairs - repeated_pairs
        layers += num_tokens * layer.attention.store_flops(config.dim)
        layers += share * (num_tokens * _read_flops(layer, config.dim) + num_pairs * layer.attention.pair_flops)
    return round(3 * (config.num_tracks * layers + num_targets * _head_flops(config)))


@dataclass(frozen=True, kw_only=True)
class KVBytes:
    """Bytes of keys and values: the numbers, and their scales (one in fp16 for each token and head of int8)."""

    payload: int
    scales: int

    @property
    def total(self) -> int:
        return self.payload + self.scales


def kv_bytes_per_token(config: DecoderConfig, numerics: KVNumerics) -> KVBytes:
    """Return the bytes that one token adds to the cache before any window is full; sharing layers add none (report 2.1)."""
    vectors = sum(layer.attention.kv_vectors for layer in config.layers)
    numbers = sum(layer.attention.kv_vectors * layer.attention.head_dim for layer in config.layers)
    tracks = config.num_tracks
    return KVBytes(payload=tracks * numbers * _PAYLOAD_BYTES[numerics], scales=tracks * vectors * _SCALE_BYTES[numerics])


def kv_bytes(config: DecoderConfig, numerics: KVNumerics, num_tokens: int) -> int:
    """Return the bytes of the cache of `num_tokens`, scales included. A layer with a window stores that many at most."""
    total = 0
    for layer in config.layers:
        attention = layer.attention
        stored = num_tokens if attention.window is None else min(num_tokens, attention.window)
        vector_bytes = attention.head_dim * _PAYLOAD_BYTES[numerics] + _SCALE_BYTES[numerics]
        total += config.num_tracks * stored * attention.kv_vectors * vector_bytes
    return total


def all_global(config: DecoderConfig) -> DecoderConfig:
    """Return the same model without windows, for comparison."""
    layers = (replace(layer, attention=replace(layer.attention, window=None)) for layer in config.layers)
    return replace(config, layers=tuple(layers))


def _read_flops(layer: LayerConfig, dim: int) -> int:
    """Return the operations of one token except key and value projections and pairs of positions."""
    return layer.attention.read_flops(dim) + layer.feed_forward.linear_flops(dim)


def _head_flops(config: DecoderConfig) -> int:
    return 2 * config.vocab_size * config.dim
