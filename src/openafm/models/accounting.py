"""What a decoder costs, by arithmetic on its config. Imports no tensor library.

A multiplication with its addition counts as two floating-point operations. Norms, rotation and softmax are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from openafm.models.config import DecoderConfig, LayerConfig


def num_parameters(config: DecoderConfig) -> int:
    """Weights of the model, counted on the meta device: no storage is used, whatever the size."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build().parameters())


def flops_per_token(config: DecoderConfig, num_keys: float) -> float:
    """Floating-point operations of one token's forward pass, head included, when it sees `num_keys` keys in every layer.

    Training takes three times as many: the backward pass costs two forward passes.
    """
    layers = sum(
        layer.attention.store_flops(config.dim) + _read_flops(layer, config.dim) + _pair_flops(layer) * num_keys
        for layer in config.layers
    )
    return layers + _head_flops(config)


def training_flops(config: DecoderConfig, lengths: Iterable[int], num_targets: int) -> int:
    """Floating-point operations of forward and backward over packed documents of these lengths.

    From the last keys and values that are stored on, only the `num_targets` positions that carry loss pass; how many keys
    those see is taken from the mean of all positions.
    """
    lengths = list(lengths)
    num_tokens = sum(lengths)
    forward = float(num_targets * _head_flops(config))
    for index, layer in enumerate(config.layers):
        share = 1.0 if index < config.num_prefill_layers - 1 else num_targets / max(num_tokens, 1)
        num_pairs = sum(_visible_pairs(length, layer.attention.window) for length in lengths)
        forward += num_tokens * layer.attention.store_flops(config.dim)
        forward += share * (num_tokens * _read_flops(layer, config.dim) + num_pairs * _pair_flops(layer))
    return round(3 * forward)


def _read_flops(layer: LayerConfig, dim: int) -> int:
    """Of one token, all but its keys and values and the pairs it forms with others'."""
    return layer.attention.read_flops(dim) + layer.feed_forward.linear_flops(dim)


def _pair_flops(layer: LayerConfig) -> int:
    """Of one query and one key: the score, and the value's share in the output."""
    return 4 * layer.attention.num_heads * layer.attention.head_dim


def _head_flops(config: DecoderConfig) -> int:
    return 2 * config.vocab_size * config.dim


def _visible_pairs(length: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees, in one document."""
    seen = length if window is None else min(length, window)
    return seen * (seen + 1) // 2 + (length - seen) * seen
