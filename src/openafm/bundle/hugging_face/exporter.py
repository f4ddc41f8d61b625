"""Export a bundle as a Hugging Face folder that transformers loads: config, weights, tokenizer and chat template.

Decoders with the shape of a family of transformers become plain folders of that family: the importer must read the
written `config.json` back as the same decoder. Others become folders with their own modules (own_architecture.py). Rotary
embeddings on interleaved pairs become ones on halves by a permutation of rows, which is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.bundle import Bundle
from openafm.bundle.errors import BundleError
from openafm.bundle.hugging_face.chat.jinja_source import jinja_source
from openafm.bundle.hugging_face.config import FAMILIES, decoder_config
from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.bundle.hugging_face.own_architecture import own_config, rope_parameters, write_modules
from openafm.bundle.hugging_face.weights import INDEX, checkpoint_name
from openafm.bundle.tensor_file import MAX_SHARD_BYTES, MappedTensor, copy_tensors, read_tensors
from openafm.core.errors import UsageError
from openafm.core.files import atomic_folder, write_json
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
    TiedHeadConfig,
)
from openafm.models.vision.multimodal_config import LettersModelConfig, MultimodalConfig

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """The folder, the family of the checkpoint, and notes for the user."""

    path: Path
    family: str
    notes: tuple[str, ...]


def export_hugging_face(bundle: Bundle, place: Path) -> ExportReport:
    """Write `bundle` as a Hugging Face folder at `place`, atomically. Weights keep their dtype.

    Raises:
        UsageError: `place` exists.
        HuggingFaceError: the bundle is compressed, has a vision encoder, or its decoder has tracks, experts or layers of
            different shapes.
        BundleError: a file of the bundle is damaged.
        OutOfSpaceError: the disk is full. After any error `place` does not exist.
    """
    if place.exists():
        raise UsageError(f"{place} exists; choose another folder")
    check_exportable(bundle)
    values, lost = exported_config(bundle.config)
    bundle.verify()
    source, notes = jinja_source(bundle.template, bundle.tokenizer)
    notes = (*lost, *notes)
    stop = sorted(bundle.template.stop_tokens(bundle.tokenizer))
    names = {id: name for name, id in bundle.tokenizer.special_ids.items()}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names[bundle.template.stop_token(bundle.tokenizer)],
        "clean_up_tokenization_spaces": False,
        "model_max_length": bundle.config.context_length,
    }
    dtype = "bfloat16" if bundle.numerics.weights == "bfloat16" else "float32"
    with atomic_folder(place) as folder:
        write_json(
            folder / "config.json",
            values | {"dtype": dtype, "bos_token_id": None, "eos_token_id": stop, "pad_token_id": None},
        )
        write_json(folder / "tokenizer_config.json", settings)
        write_json(folder / "generation_config.json", {"eos_token_id": stop})
        bundle.tokenizer.save(folder / "tokenizer.json")
        (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
        (folder / "README.md").write_text(bundle.card(), encoding="utf-8")
        copy_tensors(folder, _checkpoint_tensors(bundle), MAX_SHARD_BYTES)
        _write_index(folder)
        if "auto_map" in values:
            write_modules(folder)
    return ExportReport(path=place, family=str(values["model_type"]), notes=notes)


def check_exportable(bundle: Bundle) -> None:
    """Check that a bundle is not compressed and has no vision encoder, which no export writes.

    Raises:
        HuggingFaceError: it is, or has one.
    """
    if bundle.numerics.is_compressed:
        raise HuggingFaceError(
            f"{bundle.name} is compressed; export the bundle that it was made from, or its decoded weights:"
            f" `openafm compress decode {bundle.name}`, then export {bundle.name}-decoded"
        )
    if isinstance(bundle.config, MultimodalConfig | LettersModelConfig):
        raise HuggingFaceError(f"{bundle.name} has a vision encoder, which exports do not support; export a text model")


def exported_config(config: DecoderConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the `config.json` of a family of transformers, else of the exported modules, and notes on what is lost.

    Raises:
        HuggingFaceError: neither can express this decoder.
    """
    try:
        return checkpoint_config(config), ()
    except HuggingFaceError:
        return own_config(_with_halves(config))


def checkpoint_config(config: DecoderConfig) -> dict[str, Any]:
    """Return the `config.json` of a decoder.

    Raises:
        HuggingFaceError: no supported family has this shape.
    """
    wanted = _with_halves(config)
    for family in FAMILIES:
        values = _values(family, wanted)
        try:
            if values is not None and decoder_config(values) == wanted:
                return {"architectures": [_ARCHITECTURES[family]]} | values
        except HuggingFaceError:
            continue
    raise HuggingFaceError(
        f"the decoder has no shape of {', '.join(FAMILIES)}, so transformers cannot load it: these have uniform dense "
        "layers with own keys and values, one rotary embedding, and norms of queries and keys, if any, before the rotation"
    )


def _with_halves(config: DecoderConfig) -> DecoderConfig:
    """The decoder with rotary embeddings on halves of a head."""
    layers = []
    for layer in config.layers:
        attention = layer.attention
        if isinstance(attention, AttentionConfig) and isinstance(attention.position, RotaryConfig):
            attention = replace(attention, position=replace(attention.position, layout="half"))
        layers.append(replace(layer, attention=attention))
    return replace(config, layers=tuple(layers))


def _values(family: str, config: DecoderConfig) -> dict[str, Any] | None:
    """The settings of a family for this decoder, from its first layers; the caller compares the rest."""
    attentions = [layer.attention for layer in config.layers if isinstance(layer.attention, AttentionConfig)]
    if len(attentions) < len(config.layers):
        return None
    first, feed_forward = attentions[0], config.layers[0].feed_forward
    if not isinstance(first.keys_values, OwnKeysValuesConfig):
        return None
    if not isinstance(feed_forward, DenseFeedForwardConfig) or config.tracks is not None:
        return None
    positions = [attention.position for attention in attentions]
    rotary = next((position for position in positions if isinstance(position, RotaryConfig)), RotaryConfig(layout="half"))
    windows = [attention.window for attention in attentions]
    values: dict[str, Any] = {
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": feed_forward.hidden_dim,
        "hidden_act": feed_forward.activation,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": first.num_heads,
        "num_key_value_heads": first.keys_values.num_heads,
        "head_dim": first.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": rope_parameters(rotary),
        "tie_word_embeddings": isinstance(config.head, TiedHeadConfig),
        "attention_bias": first.output_bias,
        "mlp_bias": feed_forward.bias,
    }
    if family == "smollm3":
        values["no_rope_layers"] = [int(position is not None) for position in positions]
    if any(windows) and family != "llama":
        values |= {
            "use_sliding_window": True,
            "sliding_window": max(window for window in windows if window is not None),
            "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
            "max_window_layers": len(windows),
        }
    if family in ("qwen2", "qwen3") and feed_forward.bias:
        return None
    return values


def _checkpoint_tensors(bundle: Bundle) -> Iterator[MappedTensor]:
    """The weights under the names of transformers, rows of queries and keys reordered for rotation on halves."""
    for name, tensor in bundle.stored_tensors.items():
        renamed = checkpoint_name(name)
        if renamed is None:
            raise BundleError(f"{tensor.file}: the tensor '{name}' has no name in a checkpoint")
        order = ordered_rows(bundle.config, name, tensor.shape[0], "half")
        data = tensor.data if order is None else tensor.data.reshape(tensor.shape[0], -1)[order].reshape(-1)
        yield replace(tensor, name=renamed, data=data)


def ordered_rows(
    config: DecoderConfig, name: str, num_rows: int, layout: Literal["half", "interleaved"]
) -> NDArray[np.intp] | None:
    """Return the order of rows of a weight for rotary pairs in `layout`; None if the rows stay."""
    parts = name.split(".")
    is_rotated = ".query" in name or ".key." in name or ".key_norm" in name
    if parts[0] != "layers" or not is_rotated:
        return None
    attention = config.layers[int(parts[1])].attention
    if not isinstance(attention, AttentionConfig) or not isinstance(attention.position, RotaryConfig):
        return None
    if attention.position.layout == layout:
        return None
    rows = np.arange(num_rows).reshape(-1, attention.head_dim)
    pairs = rows.reshape(len(rows), -1, 2) if layout == "half" else rows.reshape(len(rows), 2, -1)
    return pairs.swapaxes(1, 2).reshape(-1)


def _write_index(folder: Path) -> None:
    """Write the index of weight files, which transformers needs if there is more than one."""
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        tensors = {name: (file.name, tensor.data.nbytes) for file in files for name, tensor in read_tensors(file).items()}
        index = {
            "metadata": {"total_size": sum(num_bytes for _, num_bytes in tensors.values())},
            "weight_map": {name: file for name, (file, _) in tensors.items()},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
