"""Adapters as folders of the PEFT library, both ways: `adapter_config.json` and `adapter_model.safetensors`.

The folder belongs to the Hugging Face folder of the adapter's base: `openafm export BASE --to hf`, or the checkpoint that
the base was imported from.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterPackage, write_adapter
from openafm.bundle.bundle import Bundle
from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.bundle.hugging_face.exporter import exported_config, ordered_rows
from openafm.bundle.hugging_face.weights import checkpoint_name, decoder_name
from openafm.bundle.tensor_file import read_tensors
from openafm.core.errors import UsageError
from openafm.core.files import atomic_folder, write_json
from openafm.core.regular_files import read_document

_PREFIX = "base_model.model."
_PARTS = {"a": "lora_A", "b": "lora_B"}
# Settings of PEFT that compute something else, and the values that do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "lora_bias": (False, None),
}


def export_peft(adapter: AdapterPackage, base: Bundle, place: Path) -> tuple[str, ...]:
    """Write an adapter as a PEFT folder at `place`, atomically, and return notes about what is lost.

    Raises:
        UsageError: `place` exists.
        AdapterMismatchError: the adapter belongs to another base.
        HuggingFaceError: the base has no shape of a supported family.
    """
    from safetensors.numpy import save_file

    if place.exists():
        raise UsageError(f"{place} exists; choose another folder")
    adapter.check_base(base.signature)
    exported_config(base.config)
    weights, targets = {}, set()
    for name, array in adapter.weights().items():
        linear, _, part = name.rpartition(".lora.")
        renamed = checkpoint_name(f"{linear}.weight")
        if renamed is None or array.ndim != 2:
            raise HuggingFaceError(f"the adapter's weight '{name}' has no name in a checkpoint")
        module = renamed.removesuffix(".weight")
        targets.add(module.rpartition(".")[2])
        weights[f"{_PREFIX}{module}.{_PARTS[part]}.weight"] = np.ascontiguousarray(
            _ordered(base, linear, part, array, "half")
        )
    config = adapter.config
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(targets),
        "base_model_name_or_path": base.name,
        "inference_mode": True,
    }
    with atomic_folder(place) as folder:
        write_json(folder / "adapter_config.json", values)
        save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    return ("the draft model is left out",) if adapter.draft else ()


def import_peft(folder: Path, base: Bundle, place: Path, *, name: str) -> AdapterPackage:
    """Convert a PEFT folder of LoRA weights to an adapter for `base` at `place`, atomically, in float32.

    Raises:
        HuggingFaceError: the folder is incomplete, has other settings than plain LoRA, or does not fit the base.
        AdapterNameError: the name is invalid.
        BundleError: the weight file is damaged.
        AdapterError: the weights are not those of one adapter, or `place` exists and is not an adapter.
    """
    values = _read_config(folder)
    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise HuggingFaceError(f"{file} is missing; adapters in other formats (*.bin) are not supported")
    rank = int(values["r"])
    scale = float(values["lora_alpha"]) / (math.sqrt(rank) if values.get("use_rslora") else rank)
    weights, targets = {}, set()
    for theirs, tensor in read_tensors(file).items():
        linear, part = _linear_of(theirs)
        targets.add(linear.rpartition(".")[2])
        weights[f"{linear}.lora.{part}"] = _ordered(base, linear, part, np.asarray(tensor.array(), np.float32), "own")
    _check_complete(base, weights, targets, rank)
    config = LoRAConfig(rank=rank, alpha=scale * rank, targets=tuple(sorted(targets)), precision="float32")
    return write_adapter(place, weights=weights, config=config, base_signature=base.signature, name=name)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "adapter_config.json"
    try:
        values = json.loads(read_document(file))
        if not isinstance(values, dict) or type(values["r"]) is not int or values["r"] < 1:
            raise ValueError("r is not a positive integer")
        float(values["lora_alpha"])
    except FileNotFoundError:
        raise HuggingFaceError(f"{file} is missing; pass the folder of a PEFT adapter") from None
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise HuggingFaceError(f"{file} is not the config of a LoRA adapter ({error}); restore it") from error
    for setting, neutral in _NEUTRAL.items():
        if setting in values and values[setting] not in neutral:
            raise HuggingFaceError(f"{file} has {setting}={values[setting]!r}; only plain LoRA is supported")
    return values


def _linear_of(theirs: str) -> tuple[str, str]:
    """The decoder's name of the Linear of a weight, and the part."""
    parts = {their_part: part for part, their_part in _PARTS.items()}
    module, _, kind = theirs.removesuffix(".weight").removeprefix(_PREFIX).rpartition(".")
    ours = decoder_name(f"{module}.weight")
    if kind not in parts or ours is None or not ours.startswith("layers."):
        raise HuggingFaceError(f"the adapter's weight '{theirs}' is not LoRA of a Linear in a decoder's layers")
    return ours.removesuffix(".weight"), parts[kind]


def _check_complete(base: Bundle, weights: dict[str, NDArray[np.float32]], targets: set[str], rank: int) -> None:
    """Check names and shapes: adapters here have all layers' Linears of a target."""
    matrices = {name: tensor.shape for name, tensor in base.stored_tensors.items() if name.startswith("layers.")}
    expected: dict[str, tuple[int, ...]] = {}
    for name, shape in matrices.items():
        linear, _, kind = name.rpartition(".")
        if kind == "weight" and len(shape) == 2 and linear.rpartition(".")[2] in targets:
            expected |= {f"{linear}.lora.a": (rank, shape[1]), f"{linear}.lora.b": (shape[0], rank)}
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights:
            raise HuggingFaceError(f"the adapter lacks '{name}'; adapters of some layers only are not supported")
        if name not in expected or weights[name].shape != expected[name]:
            raise HuggingFaceError(
                f"'{name}' has shape {weights[name].shape}, {base.name} needs {expected.get(name)}; pass the adapter's base"
            )


def _ordered(base: Bundle, linear: str, part: str, array: NDArray[Any], layout: str) -> NDArray[Any]:
    """Rows of `b` of queries and keys in the order of rotation on halves, or back in that of the base."""
    if part == "a":
        return array
    order = ordered_rows(base.config, f"{linear}.weight", array.shape[0], "half")
    if order is None:
        return array
    return array[order] if layout == "half" else array[np.argsort(order)]
