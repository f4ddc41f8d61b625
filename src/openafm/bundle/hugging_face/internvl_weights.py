"""The safetensors of an InternVL checkpoint, with the names and shapes of openafm's modules.

Shapes: D encoder dim, P pixels of a patch side, G patches of the position grid's side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.bundle.hugging_face.weights import check_names, check_shape, decoder_weights, stored_weights
from openafm.bundle.tensor_file import MappedTensor, TensorSource
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.pixel_shuffle_config import PixelShuffleAdapterConfig

Shape = tuple[int, ...]
_PREFIXES = {  # of older checkpoints and of new ones
    r"^(model\.language_model|language_model\.model)\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^(model\.)?vision_tower\.": "vision.",
    r"^(model\.)?multi_modal_projector\.": "adapter.",
}
_IN_LAYERS = {
    "layernorm_before": "attention_norm",
    "layernorm_after": "mlp_norm",
    "attention.projection_layer": "output",
    "mlp.fc1": "up",
    "mlp.fc2": "down",
}
_ADAPTER = {"layer_norm": "norm", "linear_1": "up", "linear_2": "down"}


@dataclass(frozen=True, kw_only=True)
class JoinedTensor:
    """A tensor whose bytes are computed from tensors of a checkpoint when `data` is read."""

    name: str
    dtype: str
    shape: Shape
    parts: tuple[MappedTensor, ...]
    join: Callable[[Sequence[MappedTensor]], NDArray[Any]]

    @property
    def file(self) -> Path:
        return self.parts[0].file

    @property
    def data(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.join(self.parts)).reshape(-1).view(np.uint8)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The tensors of a checkpoint that make one of ours: names and shapes, and the function that joins them."""

    parts: Mapping[str, Shape]
    join: Callable[[Sequence[MappedTensor]], NDArray[Any]]
    shape: Shape
    is_float: bool = False


def read_internvl_weights(folder: Path, config: MultimodalConfig, *, has_attention_bias: bool) -> list[TensorSource]:
    """Return every weight of the model: those of the decoder mapped, those of the encoder joined when they are read.

    Without `has_attention_bias` the biases of queries, keys and values are zero.

    Raises:
        HuggingFaceError: a file or weight is missing, a weight is unknown or has the wrong shape.
        BundleError: a file is damaged.
    """
    stored = {_renamed(name): tensor for name, tensor in stored_weights(folder).items()}
    of_vision = {name: stored.pop(name) for name in list(stored) if name.startswith(("vision.", "adapter."))}
    sources = _sources(config, has_attention_bias)
    check_names({name for source in sources.values() for name in source.parts}, of_vision.keys())
    found: list[TensorSource] = [*decoder_weights(stored, config.decoder)]
    for name, source in sources.items():
        for part, shape in source.parts.items():
            check_shape(part, of_vision[part].shape, shape)
        found.append(_joined(name, source, tuple(of_vision[part] for part in source.parts)))
    return found


def _joined(name: str, source: _Source, parts: tuple[MappedTensor, ...]) -> JoinedTensor:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1 and not source.is_float:
        raise HuggingFaceError(
            f"the parts of '{name}' have the dtypes {', '.join(sorted(dtypes))}; convert them to one dtype"
        )
    return JoinedTensor(
        name=name, dtype="F32" if source.is_float else parts[0].dtype, shape=source.shape, parts=parts, join=source.join
    )


def _renamed(theirs: str) -> str:
    for pattern, prefix in _PREFIXES.items():
        theirs = re.sub(pattern, prefix, theirs)
    return theirs


def _sources(config: MultimodalConfig, has_attention_bias: bool) -> dict[str, _Source]:
    """Return what every weight of the encoder and the adapter is made of."""
    vision, adapter = config.vision, config.adapter
    assert isinstance(adapter, PixelShuffleAdapterConfig)
    dim, patch, grid = vision.dim, vision.patch_side, vision.grid_side(vision.image_side)
    embeddings, position = "vision.embeddings", {"vision.embeddings.position_embeddings": (1, grid**2 + 1, dim)}
    projection = f"{embeddings}.patch_embeddings.projection"
    sources = {
        "vision.registers_RD": _Source(
            parts={f"{embeddings}.cls_token": (1, 1, dim)} | position, join=_class_token, shape=(1, dim), is_float=True
        ),
        "vision.position_GGD": _Source(parts=position, join=_positions, shape=(grid, grid, dim)),
        "vision.patch.weight": _Source(
            parts={f"{projection}.weight": (dim, 3, patch, patch)}, join=_channels_last, shape=(dim, 3 * patch**2)
        ),
        "vision.patch.bias": _same(f"{projection}.bias", (dim,)),
    }
    for index in range(len(vision.layers)):
        sources |= _layer_sources(vision, index, has_attention_bias)
    if vision.final_norm:
        sources |= {f"vision.norm.{kind}": _same(f"vision.layernorm.{kind}", (dim,)) for kind in ("weight", "bias")}
    joined = adapter.factor**2 * dim
    shapes = {"layer_norm": (joined,), "linear_1": (config.dim, joined), "linear_2": (config.dim, config.dim)}
    for theirs, ours in _ADAPTER.items():
        sources[f"adapter.{ours}.weight"] = _same(f"adapter.{theirs}.weight", shapes[theirs])
        sources[f"adapter.{ours}.bias"] = _same(f"adapter.{theirs}.bias", shapes[theirs][:1])
    return sources


def _layer_sources(vision: VisionConfig, index: int, has_attention_bias: bool) -> dict[str, _Source]:
    dim, mlp_dim = vision.dim, vision.layers[index].mlp_dim
    ours, theirs = f"vision.layers.{index}", f"vision.encoder.layer.{index}"
    shapes: dict[str, Shape] = {
        "layernorm_before": (dim,),
        "layernorm_after": (dim,),
        "attention.projection_layer": (dim, dim),
        "mlp.fc1": (mlp_dim, dim),
        "mlp.fc2": (dim, mlp_dim),
    }
    sources = {
        f"{ours}.attention_scale": _same(f"{theirs}.lambda_1", (dim,)),
        f"{ours}.mlp_scale": _same(f"{theirs}.lambda_2", (dim,)),
    }
    weights: dict[str, Shape] = {f"{theirs}.attention.{each}_proj.weight": (dim, dim) for each in "qkv"}
    biases: dict[str, Shape] = {f"{theirs}.attention.{each}_proj.bias": (dim,) for each in "qkv"}
    sources[f"{ours}.query_key_value.weight"] = _Source(parts=weights, join=_concatenated, shape=(3 * dim, dim))
    sources[f"{ours}.query_key_value.bias"] = (
        _Source(parts=biases, join=_concatenated, shape=(3 * dim,))
        if has_attention_bias
        else _Source(parts=weights, join=_zero_bias, shape=(3 * dim,), is_float=True)
    )
    for name, shape in shapes.items():
        sources[f"{ours}.{_IN_LAYERS[name]}.weight"] = _same(f"{theirs}.{name}.weight", shape)
        sources[f"{ours}.{_IN_LAYERS[name]}.bias"] = _same(f"{theirs}.{name}.bias", shape[:1])
    return sources


def _same(name: str, shape: Shape) -> _Source:
    return _Source(parts={name: shape}, join=_concatenated, shape=shape)


def _stored(tensor: MappedTensor) -> NDArray[Any]:
    """The numbers as they are stored, bfloat16 as integers of 16 bits: they are moved, not computed with."""
    return tensor.data.view(np.uint32 if tensor.dtype == "F32" else np.uint16).reshape(tensor.shape)


def _concatenated(parts: Sequence[MappedTensor]) -> NDArray[Any]:
    return np.concatenate([_stored(part) for part in parts])


def _channels_last(parts: Sequence[MappedTensor]) -> NDArray[Any]:
    return _stored(parts[0]).transpose(0, 2, 3, 1)


def _positions(parts: Sequence[MappedTensor]) -> NDArray[Any]:
    return _stored(parts[0])[:, 1:]


def _zero_bias(parts: Sequence[MappedTensor]) -> NDArray[np.float32]:
    return np.zeros(sum(part.shape[0] for part in parts), np.float32)


def _class_token(parts: Sequence[MappedTensor]) -> NDArray[np.float32]:
    """The class token with its position, which registers do not have."""
    token, position = (part.array().astype(np.float32) for part in parts)
    summed: NDArray[np.float32] = token[0] + position[0, :1]
    return summed
