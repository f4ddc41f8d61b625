"""Checks that the native runtime supports a bundle. Imports no tensor library."""

from __future__ import annotations

from dataclasses import replace

from openafm.bundle import Bundle
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    TiedHeadConfig,
)
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.runtime.native.vision import SCOPES

LARGEST_INPUT = 8192  # up to this many inputs, integer sums are exact in fp32
LEVEL_ZEROS = {"int2_balanced": 1.5, "int2_unbalanced": 2.0}


def unsupported(bundle: Bundle) -> str | None:
    """Return why the native runtime cannot run this bundle; None if it can."""
    numerics = bundle.numerics
    if numerics.weights not in LEVEL_ZEROS or numerics.activations != "int8_per_token":
        return f"its weights are {numerics.weights} with {numerics.activations} activations"
    if numerics.embedding != "int4_group32" or numerics.kv != "int8_per_token_head":
        return f"its embedding is {numerics.embedding}, its keys and values {numerics.kv}"
    return _unsupported_shape(bundle.config)


def _unsupported_shape(config: DecoderConfig) -> str | None:
    if isinstance(config, MultimodalConfig) and any(type(layer.scope) not in SCOPES for layer in config.vision.layers):
        return "its vision encoder has an unknown attention scope"
    attention, feed_forward = config.layers[0].attention, config.layers[0].feed_forward
    if config.tracks is not None or not isinstance(config.head, TiedHeadConfig):
        return "it has parallel tracks or an untied head"
    if not isinstance(attention, AttentionConfig) or type(attention.position) is not RotaryConfig or attention.head_dim % 4:
        return "its position embedding is not plain RoPE"
    if not isinstance(feed_forward, DenseFeedForwardConfig) or feed_forward.activation != "silu" or feed_forward.bias:
        return "its feed-forward is not dense with SiLU"
    if attention.window is not None or attention.input_bias or attention.output_bias:
        return "its attention has a window or biases"
    for layer in config.layers:
        keys_values = layer.attention.keys_values
        own = attention.keys_values if isinstance(keys_values, SharedKeysValuesConfig) else keys_values
        if layer.feed_forward != feed_forward or replace(layer.attention, keys_values=own) != attention:
            return "its layers are not all alike"
    widths = (config.dim, feed_forward.hidden_dim, attention.num_heads * attention.head_dim)
    if any(width % 32 or width > LARGEST_INPUT for width in widths) or attention.head_dim > 1024:
        return f"its widths {widths} are not multiples of 32 up to {LARGEST_INPUT}"
    return None
