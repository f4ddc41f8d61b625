"""Bytes of keys and values, by the figures of the design."""

from __future__ import annotations

import dataclasses

import pytest

from openafm.models.accounting import KVBytes, KVNumerics, kv_bytes, kv_bytes_per_token
from openafm.models.config import DecoderConfig, OwnKeysValuesConfig
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
