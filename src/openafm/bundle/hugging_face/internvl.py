"""`config.json` and image processor of an InternVL checkpoint as a multimodal config.

Of the open vision families, InternVL shares most with this project's models: a plain ViT with learned positions and a class
token, square views without padding, an overview beside tiles, embeddings in place of image tokens, and a decoder of a
family that is imported already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openafm.bundle.hugging_face.config import Values, check_sizes, checked_values, decoder_config
from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.models.vision.config import VisionConfig, VisionLayerConfig
from openafm.models.vision.image_modes import AspectTilesModeConfig, ImageModeConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig

_PROCESSOR = "GotOcr2ImageProcessor"  # with "Fast" or "Pil" behind it
_BICUBIC = 3  # of Pillow
_LARGEST_SIDE = 1 << 12
_VISION_SETTINGS: dict[str, Any] = {  # what the modules compute, and the defaults of transformers
    "hidden_act": "gelu",
    "norm_type": "layer_norm",
    "use_qk_norm": False,
    "use_absolute_position_embeddings": True,
    "use_mask_token": False,
    "num_channels": 3,
}
_MODEL_SETTINGS: dict[str, Any] = {
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
_PROCESSOR_SETTINGS: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "resample": _BICUBIC,
}


def internvl_config(values: Values, processor: Values) -> MultimodalConfig:
    """Return the model that `config.json` and the image processor's settings describe.

    Raises:
        HuggingFaceError: a part or a setting is not supported, or a value is missing or out of range.
    """
    with checked_values("config.json"):
        text, stated = _part(values, "text_config"), _part(values, "vision_config")
        is_tied = values.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
        decoder = decoder_config({**text, "tie_word_embeddings": is_tied})
        if (kind := stated.get("model_type", "internvl_vision")) != "internvl_vision":
            raise HuggingFaceError(f"the vision encoder is a '{kind}'; supported is internvl_vision")
        _check_settings(values, _MODEL_SETTINGS, "config.json")
        _check_settings(stated, _VISION_SETTINGS, "config.json: vision_config")
    with checked_values("the image processor's file"):
        mean, std = _colors(processor, "image_mean"), _colors(processor, "image_std")
    with checked_values("config.json"):
        vision = _vision(stated, mean, std)
        adapter = PixelShuffleAdapterConfig(factor=round(1 / float(values.get("downsample_ratio", 0.5))))
        tokens = adapter.usual_tokens(vision, vision.image_side)
    with checked_values("the image processor's file"):
        modes = _modes(processor, vision.image_side, tokens)
    with checked_values("config.json"):
        if int(values.get("image_seq_length", tokens)) != tokens:
            raise HuggingFaceError(f"image_seq_length is {values['image_seq_length']}, the encoder gives {tokens} tokens")
    return MultimodalConfig.of(decoder, vision, adapter, modes)


def _vision(values: Values, mean: tuple[float, float, float], std: tuple[float, float, float]) -> VisionConfig:
    check_sizes(values)
    image_side, patch_side = _side(values, "image_size", 448), _side(values, "patch_size", 14)
    layer = VisionLayerConfig(
        num_heads=int(values["num_attention_heads"]),
        mlp_dim=int(values["intermediate_size"]),
        layer_scale=float(values.get("layer_scale_init_value", 0.1)),
    )
    return VisionConfig(
        image_side=image_side,
        patch_side=patch_side,
        dim=int(values["hidden_size"]),
        layers=(layer,) * int(values["num_hidden_layers"]),
        norm_eps=float(values.get("layer_norm_eps", 1e-6)),
        final_norm=not values.get("use_mean_pooling", True),
        pixel_mean=mean,
        pixel_std=std,
    )


def _modes(processor: Values, side: int, tokens: int) -> tuple[ImageModeConfig, ...]:
    """The whole image as one view is the default: transformers' default has up to 13 views."""
    kind = str(processor.get("image_processor_type", _PROCESSOR))
    if not kind.startswith(_PROCESSOR):
        raise HuggingFaceError(f"the image processor is a '{kind}'; supported is {_PROCESSOR}")
    _check_settings(processor, _PROCESSOR_SETTINGS, "the image processor's file")
    size = _part(processor, "size")
    if (size.get("height"), size.get("width")) != (side, side):
        raise HuggingFaceError(f"the image processor's size is {dict(size)}, the encoder needs height and width {side}")
    balanced = AspectTilesModeConfig(name="balanced", side=side, tokens=tokens)
    least, most = int(processor.get("min_patches", 1)), int(processor.get("max_patches", 12))
    if most == 1:
        return (balanced,)
    return (balanced, AspectTilesModeConfig(name="high", side=side, tokens=tokens, least_tiles=least, most_tiles=most))


def _check_settings(values: Values, supported: Values, place: str) -> None:
    for key, value in supported.items():
        if (stated := values.get(key, value)) != value:
            raise HuggingFaceError(f"{place} has {key} {stated!r}; supported is {value!r}")


def _part(values: Values, key: str) -> Mapping[str, Any]:
    part = values[key]
    if not isinstance(part, Mapping):
        raise TypeError(f"{key} is {part!r:.40}, not an object")
    return part


def _side(values: Values, key: str, default: int) -> int:
    stated = values.get(key, default)
    sides = {int(side) for side in stated} if isinstance(stated, list) else {int(stated)}
    if len(sides) != 1 or not 0 < max(sides) <= _LARGEST_SIDE:
        raise HuggingFaceError(f"{key} is {stated!r:.40}; views are squares of at most {_LARGEST_SIDE} pixels")
    return sides.pop()


def _colors(values: Values, key: str) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values[key])
    return red, green, blue
