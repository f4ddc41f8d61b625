"""Decoder configs refuse impossible values and name the expected ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tiny_decoders import decoder_config, layer

from openafm.core.config import ConfigError, UnknownKeyError, UnknownKindError, from_dict, to_dict
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    Llama3RotaryConfig,
    OwnKeysValuesConfig,
    QKNormConfig,
    RotaryConfig,
    UntiedHeadConfig,
)


def attention(**changes: Any) -> AttentionConfig:
    return dataclasses.replace(
        AttentionConfig(num_heads=4, head_dim=8, keys_values=OwnKeysValuesConfig(num_heads=2)), **changes
    )


def with_attention(config: LayerConfig, **changes: Any) -> LayerConfig:
    return dataclasses.replace(config, attention=dataclasses.replace(config.attention, **changes))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: attention(num_heads=0), "num_heads and head_dim must be positive"),
        (lambda: attention(num_heads=3), r"num_heads \(3\) must be a multiple of the key/value heads \(2\)"),
        (lambda: attention(keys_values=OwnKeysValuesConfig(num_heads=0)), "multiple of the key/value heads"),
        (lambda: attention(head_dim=7), "head_dim must be even to rotate pairs of channels, got 7"),
        (lambda: attention(window=0), "window must be positive, got 0"),
        (lambda: QKNormConfig(eps=0.0), "eps must be positive, got 0.0"),
        (lambda: RotaryConfig(theta=0.0), "theta must be positive"),
        (lambda: DenseFeedForwardConfig(hidden_dim=0), "hidden_dim must be positive"),
        (lambda: decoder_config(), "at least one layer"),
        (lambda: dataclasses.replace(decoder_config(layer()), vocab_size=0), "vocab_size and dim must be positive"),
        (lambda: dataclasses.replace(decoder_config(layer()), context_length=0), "context_length must be positive"),
        (lambda: dataclasses.replace(decoder_config(layer()), norm_eps=0.0), "norm_eps must be positive"),
        (lambda: decoder_config(layer(), layer(source=1)), "layer 1 shares the keys and values of layer 1"),
        (lambda: decoder_config(layer(), layer(source=-1)), "must be an earlier layer with its own"),
        (lambda: decoder_config(layer(), layer(source=0), layer(source=1)), "must be an earlier layer with its own"),
        (lambda: decoder_config(layer(source=1), layer()), "must be an earlier layer with its own"),
        (lambda: decoder_config(layer(), with_attention(layer(source=0), head_dim=16)), "must agree in head_dim"),
        (lambda: decoder_config(layer(), with_attention(layer(source=0), num_heads=3)), "divide into key/value heads"),
    ],
)
def test_impossible_values_are_refused(build: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build()


def test_without_rotation_a_head_dim_may_be_odd() -> None:
    assert attention(head_dim=7, position=None).head_dim == 7


def test_json_of_a_layer_part_must_name_a_concrete_kind() -> None:
    values = to_dict(decoder_config(layer()))
    del values["layers"][0]["feed_forward"]["type"]
    with pytest.raises(ConfigError, match=r'feed_forward: missing "type".*known: .*DenseFeedForwardConfig'):
        from_dict(DecoderConfig, values)
    values["layers"][0]["feed_forward"]["type"] = "FeedForwardConfig"
    with pytest.raises(UnknownKindError, match=r"feed_forward: unknown type 'FeedForwardConfig'"):
        from_dict(DecoderConfig, values)


def test_a_former_class_name_is_read_and_the_present_one_written() -> None:
    rope = Llama3RotaryConfig(factor=8.0, low_turns=1.0, high_turns=4.0, original_context_length=64)
    values = to_dict(decoder_config(layer(position=rope)))
    assert values["layers"][0]["attention"]["position"]["type"] == "Llama3RotaryConfig"
    values["layers"][0]["attention"]["position"]["type"] = "BandedRotaryConfig"
    assert from_dict(DecoderConfig, values).layers[0].attention == layer(position=rope).attention


def test_own_layers_and_key_value_heads_follow_the_sources() -> None:
    config = decoder_config(layer(), layer(source=0), layer(), layer(source=2), layer(source=0))
    assert config.own_layers == (0, 2)
    assert config.num_prefill_layers == 3
    assert [config.kv_heads(index) for index in range(5)] == [2] * 5


def test_layers_of_every_kind_survive_json() -> None:
    config = dataclasses.replace(
        decoder_config(layer(), layer(source=0, window=5), layer(position=None)), head=UntiedHeadConfig()
    )
    assert from_dict(DecoderConfig, to_dict(config)) == config


def test_a_misspelled_key_deep_in_a_layer_is_named() -> None:
    values = to_dict(decoder_config(layer()))
    values["layers"][0]["attention"]["position"]["thetta"] = 1.0
    with pytest.raises(UnknownKeyError, match=r"layers\[0\]\.attention\.position\.thetta'; did you mean 'theta'"):
        from_dict(DecoderConfig, values)
