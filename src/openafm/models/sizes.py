"""Named decoder sizes, from a laptop's to the report's (report 2.1)."""

from __future__ import annotations

from collections.abc import Callable

from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    FeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    TracksConfig,
)
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.models.size_names import find_size
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import (
    adapter_for,
    image_modes,
    raised,
    rw_vitdet_large,
    rw_vitdet_micro,
    rw_vitdet_nano,
    vit_giant,
    vit_nano,
)


def shared_kv_decoder(
    *,
    vocab_size: int,
    dim: int,
    num_own_layers: int,
    num_shared_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_dim: int,
    context_length: int,
) -> DecoderConfig:
    """Return the on-device shape: regular layers, then layers that read the keys and values of the last regular one."""

    def layer(keys_values: OwnKeysValuesConfig | SharedKeysValuesConfig) -> LayerConfig:
        return LayerConfig(
            attention=AttentionConfig(num_heads=num_heads, head_dim=head_dim, keys_values=keys_values),
            feed_forward=DenseFeedForwardConfig(hidden_dim=hidden_dim),
        )

    regular = layer(OwnKeysValuesConfig(num_heads=num_kv_heads))
    sharing = layer(SharedKeysValuesConfig(layer=num_own_layers - 1))
    return DecoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=(regular,) * num_own_layers + (sharing,) * num_shared_layers,
        context_length=context_length,
    )


def on_device_base() -> DecoderConfig:
    """Return the report's on-device model: 3,111,368,064 parameters, 62.5 % of the layers with own keys and values."""
    return shared_kv_decoder(
        vocab_size=153_600,
        dim=2048,
        num_own_layers=35,
        num_shared_layers=21,
        num_heads=16,
        num_kv_heads=2,
        head_dim=128,
        hidden_dim=6656,
        context_length=65_536,
    )


def on_device_draft() -> DecoderConfig:
    """Return the draft model for speculative decoding with `on_device.base`: 48,765,952 parameters, no KV sharing."""
    return shared_kv_decoder(
        vocab_size=153_600,
        dim=256,
        num_own_layers=12,
        num_shared_layers=0,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        hidden_dim=768,
        context_length=65_536,
    )


def on_device_nano() -> DecoderConfig:
    """Return a laptop-sized on-device model of 7.5 M parameters."""
    return shared_kv_decoder(
        vocab_size=4096,
        dim=256,
        num_own_layers=5,
        num_shared_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        hidden_dim=832,
        context_length=4096,
    )


def on_device_small() -> DecoderConfig:
    """Return a model of 31.2 M parameters for a GPU and some minutes: about 9 MB in 2 bits, 62 MB in bf16.

    It has nano's layers at twice the width, because a GPU computes wide layers faster than many.
    """
    return shared_kv_decoder(
        vocab_size=4096,
        dim=512,
        num_own_layers=5,
        num_shared_layers=3,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        hidden_dim=1920,
        context_length=4096,
    )


def on_device_nano_draft() -> DecoderConfig:
    """Return the draft model for `on_device.nano`."""
    return shared_kv_decoder(
        vocab_size=4096,
        dim=128,
        num_own_layers=3,
        num_shared_layers=0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        hidden_dim=384,
        context_length=4096,
    )


def on_device_micro() -> DecoderConfig:
    """Return the model that `make run` trains in minutes."""
    return shared_kv_decoder(
        vocab_size=2048,
        dim=128,
        num_own_layers=5,
        num_shared_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        hidden_dim=256,
        context_length=1024,
    )


def on_device_micro_draft() -> DecoderConfig:
    """Return the draft model for `on_device.micro`."""
    return shared_kv_decoder(
        vocab_size=2048,
        dim=64,
        num_own_layers=2,
        num_shared_layers=0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        hidden_dim=128,
        context_length=1024,
    )


def compact_base() -> DecoderConfig:
    """Return the decoder that the vision encoder is trained with: 302 M parameters (report 4.2).

    The report gives the number of parameters; the shape is this project's.
    """
    return shared_kv_decoder(
        vocab_size=153_600,
        dim=1024,
        num_own_layers=12,
        num_shared_layers=0,
        num_heads=16,
        num_kv_heads=4,
        head_dim=64,
        hidden_dim=3072,
        context_length=16_384,
    )


def compact_nano() -> DecoderConfig:
    """Return the compact decoder for training the vision encoder of `on_device.nano`."""
    return shared_kv_decoder(
        vocab_size=4096,
        dim=128,
        num_own_layers=4,
        num_shared_layers=0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        hidden_dim=384,
        context_length=4096,
    )


def compact_micro() -> DecoderConfig:
    """Return the compact decoder for training the vision encoder of `on_device.micro`."""
    return shared_kv_decoder(
        vocab_size=2048,
        dim=64,
        num_own_layers=2,
        num_shared_layers=0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        hidden_dim=192,
        context_length=1024,
    )


def parallel_track_decoder(
    *,
    vocab_size: int,
    dim: int,
    num_tracks: int,
    num_layers: int,
    block_depth: int,
    num_heads: int,
    head_dim: int,
    window: int,
    dense_dim: int,
    num_experts: int,
    expert_dim: int,
    context_length: int,
) -> DecoderConfig:
    """Return the server shape (report 2.2).

    Of every four layers three have local attention with rotary embedding and the fourth global attention without positions;
    dense feed-forwards and experts alternate.
    """

    def attention(index: int) -> AttentionConfig:
        is_global = index % 4 == 3
        return AttentionConfig(
            num_heads=num_heads,
            head_dim=head_dim,
            keys_values=OwnKeysValuesConfig(num_heads=num_heads),
            window=None if is_global else window,
            position=None if is_global else RotaryConfig(),
        )

    def feed_forward(index: int) -> FeedForwardConfig:
        if index % 2:
            return ExpertsConfig(num_experts=num_experts, hidden_dim=expert_dim)
        return DenseFeedForwardConfig(hidden_dim=dense_dim)

    return DecoderConfig(
        vocab_size=vocab_size,
        dim=dim,
        layers=tuple(LayerConfig(attention=attention(i), feed_forward=feed_forward(i)) for i in range(num_layers)),
        context_length=context_length,
        tracks=TracksConfig(num_tracks=num_tracks, block_depth=block_depth),
    )


def server_full() -> DecoderConfig:
    """Return the report's server model: 147,803,703,296 parameters, 15.8 billion active per token."""
    return parallel_track_decoder(
        vocab_size=153_600,
        dim=2048,
        num_tracks=8,
        num_layers=48,
        block_depth=4,
        num_heads=4,
        head_dim=128,
        window=4096,
        dense_dim=5888,
        num_experts=40,
        expert_dim=2944,
        context_length=65_536,
    )


def server_nano() -> DecoderConfig:
    """Return a laptop-sized server model of about 10 M parameters."""
    return parallel_track_decoder(
        vocab_size=16_384,
        dim=128,
        num_tracks=4,
        num_layers=8,
        block_depth=4,
        num_heads=2,
        head_dim=32,
        window=64,
        dense_dim=368,
        num_experts=4,
        expert_dim=184,
        context_length=4096,
    )


def server_micro() -> DecoderConfig:
    """Return a smaller server model, for tests and comparisons over several seeds."""
    return parallel_track_decoder(
        vocab_size=2048,
        dim=64,
        num_tracks=2,
        num_layers=4,
        block_depth=2,
        num_heads=2,
        head_dim=32,
        window=64,
        dense_dim=128,
        num_experts=4,
        expert_dim=64,
        context_length=1024,
    )


def on_device_base_multimodal() -> MultimodalConfig:
    """Return `on_device.base` with ViTDet-L, Register-Window and all resolution modes (report 2.3, 5.1)."""
    vision = rw_vitdet_large()
    modes = image_modes(side=672, rapid_side=224, tokens=144)
    return MultimodalConfig.of(on_device_base(), vision, adapter_for(vision), modes)


def on_device_nano_multimodal() -> MultimodalConfig:
    """Return `on_device.nano` with vision, in the report's proportions at half the side."""
    vision = raised(rw_vitdet_nano(), 336)
    modes = image_modes(side=336, rapid_side=112, tokens=144)
    return MultimodalConfig.of(on_device_nano(), vision, adapter_for(vision), modes)


def on_device_micro_multimodal() -> MultimodalConfig:
    """Return `on_device.micro` with vision, in the report's proportions at a quarter of the side."""
    vision = raised(rw_vitdet_micro(), 168)
    modes = image_modes(side=168, rapid_side=56, tokens=36)
    return MultimodalConfig.of(on_device_micro(), vision, adapter_for(vision, tokens_side=6), modes)


def server_full_multimodal() -> MultimodalConfig:
    """Return `server.full` with ViT-g: 144 tokens of an image of 448 pixels (report 2.3, 4.4)."""
    vision = vit_giant()
    return MultimodalConfig.of(server_full(), vision, adapter_for(vision), image_modes(side=448, tokens=144))


def server_nano_multimodal() -> MultimodalConfig:
    """Return `server.nano` with vision."""
    vision = vit_nano()
    return MultimodalConfig.of(server_nano(), vision, adapter_for(vision), image_modes(side=224, tokens=144))


SIZES: dict[str, Callable[[], DecoderConfig]] = {
    "on_device.micro": on_device_micro,
    "on_device.micro_draft": on_device_micro_draft,
    "on_device.nano": on_device_nano,
    "on_device.nano_draft": on_device_nano_draft,
    "on_device.small": on_device_small,
    "on_device.draft": on_device_draft,
    "on_device.base": on_device_base,
    "compact.micro": compact_micro,
    "compact.nano": compact_nano,
    "compact.base": compact_base,
    "server.micro": server_micro,
    "server.nano": server_nano,
    "server.full": server_full,
    "on_device.micro_multimodal": on_device_micro_multimodal,
    "on_device.nano_multimodal": on_device_nano_multimodal,
    "on_device.base_multimodal": on_device_base_multimodal,
    "server.nano_multimodal": server_nano_multimodal,
    "server.full_multimodal": server_full_multimodal,
}


def named_size(name: str) -> DecoderConfig:
    """Return the decoder config of a named size.

    Raises:
        UnknownSizeError: there is no such size; the message gives the nearest name.
    """
    return find_size(name, SIZES, "size")
