"""Memory of a vision encoder and its adapter in a training step, by arithmetic. Imports no tensor library.

`tests/training/planning/test_vision_footprint.py` compares the counts with autograd's hooks.
"""

from __future__ import annotations

from openafm.models.activations import MASTER_BYTES
from openafm.models.vision.config import GlobalScopeConfig, RegisterWindowScopeConfig, VisionConfig, VisionLayerConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig


def vision_bytes(config: MultimodalConfig, num_images: int, number_bytes: int) -> int:
    """Return the bytes that autograd saves for images in the model's default mode, all encoded at once."""
    if num_images == 0:
        return 0
    vision, mode = config.vision, config.image_modes[0]
    saved = _stem_bytes(vision, mode.side, number_bytes) + _layers_bytes(vision, mode.side, number_bytes)
    saved += _adapter_bytes(config, number_bytes)
    casts = 0 if number_bytes == MASTER_BYTES else number_bytes * config.other_parameters()
    return num_images * mode.num_views * saved + casts


def _adapter_bytes(config: MultimodalConfig, number_bytes: int) -> int:
    vision, adapter, mode = config.vision, config.adapter, config.image_modes[0]
    num_states = vision.grid_side(mode.side) ** 2 + vision.num_registers
    if isinstance(adapter, PixelShuffleAdapterConfig):
        # The norm, the inputs of both products, and the input of GELU.
        joined = vision.dim * adapter.factor**2
        return mode.tokens * (MASTER_BYTES * (joined + 2) + number_bytes * (joined + 2 * config.dim))
    # The layer, the norm, the projection, and the pooled inputs of the convolution.
    saved = _layer_bytes(adapter.layer, vision, mode.side, number_bytes)
    saved += num_states * (MASTER_BYTES * (vision.dim + 2) + number_bytes * vision.dim)
    return saved + number_bytes * config.dim * 9 * mode.tokens


def _layers_bytes(vision: VisionConfig, side: int, number_bytes: int) -> int:
    """Return the bytes of the patch embedding, the layers and the last norm."""
    if not vision.layers:
        return 0
    num_patches = vision.grid_side(side) ** 2
    saved = num_patches * vision.patch_inputs * number_bytes
    saved += sum(_layer_bytes(layer, vision, side, number_bytes) for layer in vision.layers)
    return saved + (MASTER_BYTES * (num_patches + vision.num_registers) * (vision.dim + 2) if vision.final_norm else 0)


def _stem_bytes(vision: VisionConfig, side: int, number_bytes: int) -> int:
    """Return the bytes of the stem and a view: input and output of each convolution, and its norm."""
    saved, channels = 0, 3
    for convolution in vision.stem:
        inputs, side = side**2 * channels, side // convolution.stride
        saved += number_bytes * (inputs + side**2 * convolution.channels)
        saved += MASTER_BYTES * side**2 * (convolution.channels + 2)
        channels = convolution.channels
    return saved


def _layer_bytes(layer: VisionLayerConfig, vision: VisionConfig, side: int, number_bytes: int) -> int:
    """Return the bytes of a layer and a view: two norms, queries, keys, values and output of attention, two products."""
    num_windows, window_tokens = vision.windows(side)
    num_states, dim = num_windows * window_tokens + vision.num_registers, vision.dim
    attended = num_states
    if not isinstance(layer.scope, GlobalScopeConfig):
        has_registers = isinstance(layer.scope, RegisterWindowScopeConfig)
        attended = num_windows * (window_tokens + vision.num_registers * has_registers)
    norms = 2 * num_states * (MASTER_BYTES * (dim + 2) + number_bytes * dim)
    attention = attended * (4 * dim * number_bytes + layer.num_heads * MASTER_BYTES)
    if not isinstance(layer.scope, GlobalScopeConfig):
        attention += num_states * dim * number_bytes  # windows and registers, concatenated
    scales = 0 if layer.layer_scale is None else 2 * num_states * dim * number_bytes
    return norms + attention + scales + 2 * num_states * layer.mlp_dim * number_bytes
