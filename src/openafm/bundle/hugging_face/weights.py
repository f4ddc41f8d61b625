"""The safetensors of a checkpoint, with the names of an openafm decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.bundle.tensor_file import MappedTensor, read_tensors
from openafm.core.regular_files import read_document
from openafm.models.config import DecoderConfig

INDEX = "model.safetensors.index.json"

_OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "embedding",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYERS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.keys_values.key",
    "self_attn.v_proj": "attention.keys_values.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.keys_values.key_norm",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}
# Buffers of old checkpoints that follow from the config.
_COMPARED_BYTES = 16 << 20  # of two tensors at a time
_DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def decoder_name(theirs: str) -> str | None:
    """Return the name of a checkpoint's weight in the decoder's state dict, None if the decoder has no such weight."""
    if theirs in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[theirs]
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", theirs)
    if found is None or found[2] not in _IN_LAYERS:
        return None
    return f"layers.{found[1]}.{_IN_LAYERS[found[2]]}.{found[3]}"


def checkpoint_name(name: str) -> str | None:
    """Return the name in a checkpoint of a weight of the decoder's state dict: the inverse of `decoder_name`."""
    outside = {ours: theirs for theirs, ours in _OUTSIDE_LAYERS.items()}
    if name in outside:
        return outside[name]
    found = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", name)
    inside = {ours: theirs for theirs, ours in _IN_LAYERS.items()}
    if found is None or found[2] not in inside:
        return None
    return f"model.layers.{found[1]}.{inside[found[2]]}.{found[3]}"


def read_weights(folder: Path, config: DecoderConfig) -> list[MappedTensor]:
    """Return every weight of the decoder, mapped from the checkpoint's files.

    Raises:
        HuggingFaceError: a file or weight is missing, a weight is unknown or has the wrong shape.
        BundleError: a file is damaged.
    """
    return decoder_weights(stored_weights(folder), config)


def stored_weights(folder: Path) -> dict[str, MappedTensor]:
    """Return every tensor of a checkpoint, mapped from its files.

    Raises:
        HuggingFaceError: a file is missing.
        BundleError: a file is damaged.
    """
    return {name: tensor for file in _files(folder) for name, tensor in read_tensors(file).items()}


def decoder_weights(stored: Mapping[str, MappedTensor], config: DecoderConfig) -> list[MappedTensor]:
    """Return every weight of the decoder from the tensors of a checkpoint, which hold nothing else.

    Raises:
        HuggingFaceError: a weight is missing, unknown or has the wrong shape, or a tied head is stored with other numbers.
    """
    expected = decoder_shapes(config)
    found: dict[str, MappedTensor] = {}
    for name, tensor in stored.items():
        ours = decoder_name(name)
        if ours is None and not _DERIVED.fullmatch(name):
            raise HuggingFaceError(f"{tensor.file.name}: the weight '{name}' does not exist in a decoder of openafm")
        if ours is not None:
            found[ours] = replace(tensor, name=ours)
    if "output.weight" not in expected:
        _check_copy(found.pop("output.weight", None), found.get("embedding"))
    check_names(expected.keys(), found.keys())
    for name, shape in expected.items():
        check_shape(name, found[name].shape, shape)
    return [found[name] for name in expected]


def _check_copy(head: MappedTensor | None, embedding: MappedTensor | None) -> None:
    """Check the copy of a tied head, which some files store: with other numbers, config.json belongs to another model."""
    if head is not None and embedding is not None and (head.dtype != embedding.dtype or not _equal(head, embedding)):
        raise HuggingFaceError(
            "config.json ties the head to the embedding (tie_word_embeddings), and the checkpoint has a head of its own with"
            " other numbers; restore the folder, or set tie_word_embeddings to false"
        )


def _equal(one: MappedTensor, other: MappedTensor) -> bool:
    parts = range(0, len(one.data), _COMPARED_BYTES)
    return one.shape == other.shape and all(
        np.array_equal(one.data[first : first + _COMPARED_BYTES], other.data[first : first + _COMPARED_BYTES])
        for first in parts
    )


def check_names(expected: Set[str], found: Set[str]) -> None:
    """Check that a checkpoint has exactly the weights that its config.json describes.

    Raises:
        HuggingFaceError: a weight is missing, or one too many.
    """
    for owner, names in (("the checkpoint lacks", expected - found), ("config.json does not describe", found - expected)):
        if names:
            raise HuggingFaceError(f"{owner} the weight '{min(names)}' ({len(names)} in all); restore the folder")


def check_shape(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Check the shape of a weight.

    Raises:
        HuggingFaceError: it is another one.
    """
    if found != expected:
        raise HuggingFaceError(f"weight '{name}' has shape {found}, config.json implies {expected}; restore the folder")


def decoder_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a decoder by name.

    Raises:
        HuggingFaceError: the decoder cannot be built.
    """
    import torch

    try:
        with torch.device("meta"):
            return {name: tuple(weight.shape) for name, weight in config.build().state_dict().items()}
    except (RuntimeError, TypeError) as error:  # sizes that no tensor can have
        raise HuggingFaceError(f"the model of config.json cannot be built ({error}); restore the folder") from error


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(read_document(index))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HuggingFaceError(f"{index} is not an index of weight files ({error!r}); restore it") from error
        if any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise HuggingFaceError(f"{index} lists a file outside its folder; the checkpoint is not trustworthy")
        files = [folder / name for name in names]
    else:
        files = [folder / "model.safetensors"]
    for file in files:
        if not file.is_file():
            others = ", ".join(sorted(path.name for path in folder.glob("*.bin")))
            found = f"the folder has {others}, and only safetensors are supported" if others else "download it again"
            raise HuggingFaceError(f"{file} is missing; {found}")
    return files
