"""Parameters and bytes of keys and values, by arithmetic."""

from __future__ import annotations

import dataclasses

import pytest

from openafm.models import activations
from openafm.models.accounting import KVBytes, KVNumerics, kv_bytes, kv_bytes_per_token, num_parameters
from openafm.models.activations import Microbatch
from openafm.models.attention import masked_attention, short_attention
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    ExpertsConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    SharedKeysValuesConfig,
    TiedHeadConfig,
    TrackNormConfig,
    TracksConfig,
    UntiedHeadConfig,
)
from openafm.models.sizes import named_size


def unshared(config: DecoderConfig) -> DecoderConfig:
    """The same decoder with keys and values of its own in every layer."""
    own = OwnKeysValuesConfig(num_heads=config.kv_heads(0))
    layers = tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, keys_values=own))
        for layer in config.layers
    )
    return dataclasses.replace(config, layers=layers)


def windowed(config: DecoderConfig, index: int, window: int) -> DecoderConfig:
    """The same decoder with a window in layer `index`."""
    layers = list(config.layers)
    layers[index] = dataclasses.replace(layers[index], attention=dataclasses.replace(layers[index].attention, window=window))
    return dataclasses.replace(config, layers=tuple(layers))


EXPERTS = ExpertsConfig(num_experts=3, hidden_dim=24)
DENSE = DenseFeedForwardConfig(hidden_dim=24, bias=True)
BIASED = AttentionConfig(
    num_heads=4, head_dim=8, keys_values=OwnKeysValuesConfig(num_heads=2), qk_norm=None, input_bias=True, output_bias=True
)
SHARING = AttentionConfig(num_heads=4, head_dim=8, keys_values=SharedKeysValuesConfig(layer=0), input_bias=True)
LAYERS = (
    LayerConfig(attention=BIASED, feed_forward=DENSE),
    LayerConfig(attention=SHARING, feed_forward=EXPERTS),
)


@pytest.mark.parametrize("tracks", [None, TracksConfig(num_tracks=3, block_depth=1, norm=TrackNormConfig())])
@pytest.mark.parametrize("head", [TiedHeadConfig(), UntiedHeadConfig()])
def test_parameters_counted_by_arithmetic_are_those_of_the_module(
    tracks: TracksConfig | None, head: TiedHeadConfig | UntiedHeadConfig
) -> None:
    config = DecoderConfig(vocab_size=61, dim=32, layers=LAYERS, tracks=tracks, head=head)
    parameters = dict(config.build().named_parameters())
    assert num_parameters(config) == sum(parameter.numel() for parameter in parameters.values())
    for index, layer in enumerate(LAYERS):
        for part in ("attention", "feed_forward"):
            matrices = sum(
                parameter.numel()
                for name, parameter in parameters.items()
                if name.startswith(f"layers.{index}.{part}.")
                and parameter.ndim == (2 if tracks is None else 3)
                and not any(word in name for word in ("bias", "norm"))
            )
            assert matrices == config.num_tracks * getattr(layer, part).matrix_parameters(32)


def test_sharing_saves_three_eighths_of_the_base_model() -> None:
    base = named_size("on_device.base")
    assert kv_bytes_per_token(base, "int8_per_token_head") == KVBytes(payload=17_920, scales=280)
    assert kv_bytes_per_token(unshared(base), "int8_per_token_head") == KVBytes(payload=28_672, scales=448)
    ratio = kv_bytes(base, "int8_per_token_head", 4096) / kv_bytes(unshared(base), "int8_per_token_head", 4096)
    assert ratio == 1 - 0.375


@pytest.mark.parametrize(("numerics", "bytes_per_number"), [("float32", 4), ("bfloat16", 2)])
def test_unquantized_keys_and_values_have_no_scales(numerics: KVNumerics, bytes_per_number: int) -> None:
    assert kv_bytes_per_token(named_size("on_device.base"), numerics) == KVBytes(payload=17_920 * bytes_per_number, scales=0)


def test_a_cache_is_its_tokens_until_a_window_is_full() -> None:
    nano = named_size("on_device.nano")
    per_token = kv_bytes_per_token(nano, "int8_per_token_head").total
    assert kv_bytes(nano, "int8_per_token_head", 100) == 100 * per_token
    one_layer = per_token // len(nano.own_layers)
    narrow = windowed(nano, index=1, window=10)
    assert kv_bytes(narrow, "int8_per_token_head", 10) == 10 * per_token
    assert kv_bytes(narrow, "int8_per_token_head", 100) == 100 * (per_token - one_layer) + 10 * one_layer


@pytest.mark.parametrize("num_heads", [1, 2])
def test_a_layer_with_its_own_keys_saves_more_than_one_that_reads_them(num_heads: int) -> None:
    batch = Microbatch(num_rows=1, row_tokens=16, document_tokens=16, number_bytes=4, attention_bytes=4)
    own, reading = (
        AttentionConfig(num_heads=2, head_dim=8, keys_values=keys_values)
        for keys_values in (OwnKeysValuesConfig(num_heads=num_heads), SharedKeysValuesConfig(layer=0))
    )
    keys = num_heads * 8
    normed = 4 * (keys + num_heads)  # the inputs of the key norm and its scale
    assert own.saved_bytes(batch, num_heads) - reading.saved_bytes(batch, num_heads) == 16 * (normed + 2 * 4 * keys)


def test_accounting_and_attention_use_the_same_blocks() -> None:
    assert activations.LOCAL_BLOCK == masked_attention.LOCAL_BLOCK  # accounting does not import torch
    assert activations.SHORT_POSITIONS == short_attention.MAX_POSITIONS == masked_attention.BLOCKED_LENGTHS.start - 1
