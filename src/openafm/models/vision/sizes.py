"""Named sizes of vision encoders and adapters (report 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from openafm.models.size_names import find_size
from openafm.models.vision.config import (
    AdapterConfig,
    ConvolutionConfig,
    GlobalScopeConfig,
    RegisterWindowScopeConfig,
    ScopeConfig,
    VisionConfig,
    VisionLayerConfig,
)
from openafm.models.vision.image_modes import ImageModeConfig

REGISTER_WINDOW = RegisterWindowScopeConfig()


def windowed_encoder(
    *,
    image_side: int,
    patch_side: int,
    window_side: int,
    dim: int,
    num_layers: int,
    num_heads: int,
    mlp_dim: int,
    num_global_layers: int = 3,
    scope: ScopeConfig = REGISTER_WINDOW,
    num_registers: int = 1,
) -> VisionConfig:
    """Return the on-device shape: layers in windows, with evenly spaced global layers, the last one included."""
    local = VisionLayerConfig(num_heads=num_heads, mlp_dim=mlp_dim, scope=scope)
    is_global = {(index + 1) * num_layers // num_global_layers - 1 for index in range(num_global_layers)}
    return VisionConfig(
        image_side=image_side,
        patch_side=patch_side,
        window_side=window_side,
        dim=dim,
        layers=tuple(
            replace(local, scope=GlobalScopeConfig()) if index in is_global else local for index in range(num_layers)
        ),
        num_registers=num_registers,
    )


def rw_vitdet_large() -> VisionConfig:
    """Return the report's on-device encoder: ViTDet-L with Register-Window, 672 pixels, 9 windows, 3 global layers."""
    return windowed_encoder(
        image_side=672, patch_side=16, window_side=14, dim=1024, num_layers=24, num_heads=16, mlp_dim=4096
    )


def vit_giant() -> VisionConfig:
    """Return the report's server encoder: ViT-g, 1 billion parameters, 448 pixels."""
    layer = VisionLayerConfig(num_heads=16, mlp_dim=6144)
    return VisionConfig(image_side=448, patch_side=14, dim=1408, layers=(layer,) * 40)


def rw_vitdet_nano() -> VisionConfig:
    """Return a small encoder of the on-device shape, for training on a laptop: 224 pixels in 4 windows."""
    return windowed_encoder(image_side=224, patch_side=16, window_side=7, dim=128, num_layers=6, num_heads=4, mlp_dim=512)


def rw_vitdet_micro() -> VisionConfig:
    """Return the smallest encoder of the on-device shape, for tests and for trying a recipe: 112 pixels in 4 windows."""
    return windowed_encoder(
        image_side=112, patch_side=8, window_side=7, dim=64, num_layers=4, num_heads=2, mlp_dim=256, num_global_layers=2
    )


def reader_nano() -> VisionConfig:
    """Return a small encoder for reading: convolutions alone, 448 pixels."""
    same = ConvolutionConfig(channels=128)
    stem = (
        ConvolutionConfig(channels=32, kernel_side=5, stride=2),
        ConvolutionConfig(channels=64, stride=2),
        ConvolutionConfig(channels=64),
        ConvolutionConfig(channels=128, stride=2),
        *(same, same, same),
    )
    return convolutions(448, stem)


def reader_micro() -> VisionConfig:
    """Return the smallest encoder for reading, for tests and for trying a recipe: convolutions alone, 168 pixels."""
    return convolutions(168, stem_of(8, 16, 16))


def convolutions(image_side: int, stem: tuple[ConvolutionConfig, ...]) -> VisionConfig:
    """Return an encoder without layers, whose patches are the outputs of a stem."""
    return VisionConfig(
        image_side=image_side,
        patch_side=8,
        dim=stem[-1].channels,
        layers=(),
        num_registers=0,
        final_norm=False,
        stem=stem,
    )


def stem_of(*channels: int) -> tuple[ConvolutionConfig, ...]:
    """Return convolutions with strides of 4, 2, 1, 1, ...: an output for each 8 x 8 pixels."""
    first, second, *others = (ConvolutionConfig(channels=each) for each in channels)
    return (replace(first, kernel_side=7, stride=4), replace(second, stride=2), *others)


def vit_nano() -> VisionConfig:
    """Return a small encoder of the server shape: every layer is global, 224 pixels."""
    layer = VisionLayerConfig(num_heads=4, mlp_dim=512)
    return VisionConfig(image_side=224, patch_side=14, dim=128, layers=(layer,) * 6)


def vit_micro() -> VisionConfig:
    """Return the smallest encoder of the server shape, for tests and for trying a recipe: 112 pixels."""
    return VisionConfig(image_side=112, patch_side=8, dim=64, layers=(VisionLayerConfig(num_heads=2, mlp_dim=256),) * 4)


ENCODERS: dict[str, Callable[[], VisionConfig]] = {
    "reader.micro": reader_micro,
    "reader.nano": reader_nano,
    "rw_vitdet.large": rw_vitdet_large,
    "rw_vitdet.micro": rw_vitdet_micro,
    "rw_vitdet.nano": rw_vitdet_nano,
    "vit.giant": vit_giant,
    "vit.micro": vit_micro,
    "vit.nano": vit_nano,
}


def encoder_of(name: str) -> VisionConfig:
    """Return the encoder of this name.

    Raises:
        UnknownSizeError: there is no such encoder; the message gives the nearest name.
    """
    return find_size(name, ENCODERS, "vision encoder")


def raised(vision: VisionConfig, image_side: int) -> VisionConfig:
    """Return the encoder at another resolution. Weights fit after an interpolation of the position embeddings."""
    return replace(vision, image_side=image_side)


def image_modes(*, side: int, tokens: int, rapid_side: int | None = None) -> tuple[ImageModeConfig, ...]:
    """Return balanced mode, high mode with 2 x 2 tiles, and with `rapid_side` rapid mode with nine tokens (report 5.1)."""
    balanced = ImageModeConfig(name="balanced", side=side, tokens=tokens)
    rapid = () if rapid_side is None else (ImageModeConfig(name="rapid", side=rapid_side, tokens=9),)
    return (balanced, replace(balanced, name="high", grid=2), *rapid)


def adapter_for(vision: VisionConfig, tokens_side: int = 12) -> AdapterConfig:
    """Return an adapter whose transformer layer has the shape of the encoder's layers.

    Raises:
        ConfigError: the encoder has no layers.
    """
    vision.require(bool(vision.layers), "the encoder has no layers for the adapter to take their shape; use another adapter")
    layer = replace(vision.layers[-1], scope=GlobalScopeConfig())
    return AdapterConfig(layer=layer, tokens_side=tokens_side)
