"""Checks that the native runtime supports a bundle. Imports no tensor library."""

from __future__ import annotations

from openafm.bundle import Bundle
from openafm.compression.grouped import FORMATS
from openafm.compression.numerics import Numerics
from openafm.models.attention.masks import CausalMask
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    RotaryConfig,
    YarnRotaryConfig,
)
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.models.vision.config import GlobalScopeConfig, RegisterWindowScopeConfig, ScopeConfig, WindowScopeConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.runtime.native.shapes import matrices

LEVEL_ZEROS = {"int2_balanced": 1.5, "int2_unbalanced": 2.0}
DECODED_WEIGHTS = {"float32", "bfloat16", "astc_6x6"}  # beside float activations
LARGEST_HEAD_DIM = 1024
POSITIONS = {RotaryConfig, LinearRotaryConfig, Llama3RotaryConfig, YarnRotaryConfig, type(None)}
VISION_SCOPES: tuple[type[ScopeConfig], ...] = (GlobalScopeConfig, RegisterWindowScopeConfig, WindowScopeConfig)
_UNIT = 32  # inputs of a matrix are rounded and summed in groups of this size


def largest_input(weights: str) -> int:
    """Return the number of inputs up to which both engines sum products exactly.

    2-bit levels times activations are at most 381 / 2, and torch sums their multiples of a half in fp32, up to 2^23. Rows of
    8 bits are summed in 32 bits. Sums of groups are always exact.
    """
    if weights in LEVEL_ZEROS:
        return 2**24 // 381 // _UNIT * _UNIT
    if weights == "int8_per_row":
        return (2**31 - 1) // (128 * 127) // _UNIT * _UNIT
    return 2**31 - 1


def unsupported(bundle: Bundle) -> str | None:
    """Return why the native runtime cannot run this bundle; None if it can."""
    return _unsupported_numerics(bundle.numerics) or _unsupported_shape(bundle.config, bundle.numerics)


def _unsupported_numerics(numerics: Numerics) -> str | None:
    used = {numerics.weights, *(each.weights for each in numerics.exceptions)}
    if numerics.kv == "bfloat16":
        return "its keys and values are bfloat16; import it with --weights, or compress it"
    if numerics.activations != "int8_per_token":
        if not used <= DECODED_WEIGHTS:
            return f"its weights are {', '.join(sorted(used - DECODED_WEIGHTS))} with {numerics.activations} activations"
        return None
    if is_float(numerics):
        return f"it computes in {numerics.activations}; import it with --weights"
    if numerics.kv != "int8_per_token_head":
        return f"its keys and values are {numerics.kv}, not 8-bit; import it with --weights, or compress it to int4 or int8"
    if not used <= {*LEVEL_ZEROS, *FORMATS, "bfloat16"}:
        return f"its weights are {', '.join(sorted(used))}"
    if len(used & LEVEL_ZEROS.keys()) > 1:
        return "it has two sets of 2-bit levels"
    if numerics.embedding not in {*FORMATS, "bfloat16"}:
        return f"its embedding is {numerics.embedding}"
    return None


def is_float(numerics: Numerics) -> bool:
    """Return True if every matrix is stored in fp32 or bfloat16."""
    used = {numerics.weights, numerics.embedding, *(each.weights for each in numerics.exceptions)}
    return used <= {"float32", "bfloat16"}


def takes_new_weights(bundle: Bundle) -> bool:
    """Return True if the native engine can replace this bundle's weights: fp32 or bfloat16, without a vision encoder."""
    return is_float(bundle.numerics) and not isinstance(bundle.config, MultimodalConfig)


def _unsupported_shape(config: DecoderConfig, numerics: Numerics) -> str | None:
    if isinstance(config, MultimodalConfig) and any(
        type(layer.scope) not in VISION_SCOPES for layer in config.vision.layers
    ):
        return "its vision encoder has an unknown attention scope"
    heads, norms = set(), set()
    for index, layer in enumerate(config.layers):
        attention, feed_forward = layer.attention, layer.feed_forward
        if type(feed_forward) not in {DenseFeedForwardConfig, ExpertsConfig}:
            return f"its feed-forward is a {type(feed_forward).__name__}"
        assert isinstance(feed_forward, DenseFeedForwardConfig | ExpertsConfig)
        if isinstance(feed_forward, ExpertsConfig) and type(feed_forward.router) is not TopKRouterConfig:
            return f"its router is a {type(feed_forward.router).__name__}"
        if feed_forward.activation != "silu":
            return f"the activation of its feed-forward is {feed_forward.activation}, not silu"
        if type(attention) is not AttentionConfig or not isinstance(attention.mask, CausalMask):
            return f"its attention is a {type(attention).__name__}"
        if type(attention.position) not in POSITIONS:
            return f"its position embedding is a {type(attention.position).__name__}"
        heads.add((attention.num_heads, config.kv_heads(index), attention.head_dim))
        norms.add(attention.qk_norm)
    if len(heads) > 1 or len(norms) > 1:
        return "its layers differ in the shape of their heads or in the norms of queries and keys"
    ((_, _, head_dim),) = heads
    if head_dim % 4 or head_dim > LARGEST_HEAD_DIM:
        return f"its head dim {head_dim} is not a multiple of 4 up to {LARGEST_HEAD_DIM}"
    if len({position.layout for position in rotaries(config)}) > 1:
        return "its layers rotate pairs of channels in different layouts"
    if numerics.activations != "int8_per_token":
        return None
    for name, (_, num_inputs) in matrices(config).items():
        largest = largest_input(numerics.weights_of(name))
        unit = FORMATS[kind].group or _UNIT if (kind := numerics.weights_of(name)) in FORMATS else _UNIT
        if num_inputs % unit or num_inputs > largest:
            return f"{name} has {num_inputs} inputs, not a multiple of {unit} up to {largest:,}"
    return None


def rotaries(config: DecoderConfig) -> tuple[RotaryConfig, ...]:
    """Return the different rotary embeddings of the layers, in order of first use."""
    positions = (layer.attention.position for layer in config.layers if isinstance(layer.attention, AttentionConfig))
    return tuple(dict.fromkeys(position for position in positions if isinstance(position, RotaryConfig)))
