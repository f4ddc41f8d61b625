"""Export a bundle of a family that llama.cpp computes as a GGUF file: weights, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.bundle import Bundle
from openafm.bundle.gguf.architecture import INTERLEAVED_FAMILIES, ROPE_FACTORS, file_metadata, file_name, llama3_factors
from openafm.bundle.gguf.tokenizer import file_tokenizer
from openafm.bundle.gguf.writer import WRITTEN_TYPES, TensorToWrite, write_gguf
from openafm.bundle.hugging_face.chat.jinja_source import jinja_source
from openafm.bundle.hugging_face.exporter import ExportReport, check_exportable, checkpoint_config, ordered_rows
from openafm.bundle.tensor_file import MappedTensor
from openafm.core.errors import UsageError

GGUFType = Literal["stored", "f32", "f16", "bf16", "q8_0", "q4_0"]

_STORED = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def export_gguf(bundle: Bundle, place: Path, *, type: GGUFType = "stored") -> ExportReport:
    """Write `bundle` as the GGUF file `place`, atomically.

    Args:
        type: type of the matrices; "stored" keeps float32 or bfloat16. Vectors are always float32.

    Raises:
        UsageError: `place` exists.
        HuggingFaceError: the bundle is compressed, or its decoder has no shape of a supported family.
        GGUFError: llama.cpp has no name for the tokenizer, or does not compute this variant of the family.
        BundleError: a file of the bundle is damaged.
        OutOfSpaceError: the disk is full. After any error `place` does not exist.
    """
    if place.exists():
        raise UsageError(f"{place} exists; choose another file")
    check_exportable(bundle)
    values = checkpoint_config(bundle.config)
    metadata = {"general.architecture": values["model_type"], "general.name": bundle.name, **file_metadata(values)}
    metadata |= file_tokenizer(bundle.tokenizer, bundle.config.vocab_size, bundle.template.stop_token(bundle.tokenizer))
    source, notes = jinja_source(bundle.template, bundle.tokenizer)
    metadata["tokenizer.chat_template"] = source
    if type.startswith("q"):
        metadata["general.quantization_version"] = 2
    bundle.verify()
    tensors = list(_tensors(bundle, values, type))
    if type != "stored":
        num_others = sum(len(tensor.shape) == 2 and tensor.type is not WRITTEN_TYPES[type] for tensor in tensors)
        if num_others:
            notes += (f"{num_others} matrices are float16: their rows are not a multiple of 32 values",)
    write_gguf(place, metadata, tensors)
    return ExportReport(path=place, family=str(values["model_type"]), notes=notes)


def _tensors(bundle: Bundle, values: dict[str, Any], type: GGUFType) -> Iterator[TensorToWrite]:
    layout: Literal["interleaved", "half"] = "interleaved" if values["model_type"] in INTERLEAVED_FAMILIES else "half"
    for name, tensor in bundle.stored_tensors.items():
        kind = WRITTEN_TYPES["f32"]
        if len(tensor.shape) == 2:
            kind = WRITTEN_TYPES[_STORED[tensor.dtype] if type == "stored" else type]
            kind = kind if tensor.shape[1] % kind.block_values == 0 else WRITTEN_TYPES["f16"]
        read = partial(_values, bundle, name, tensor, layout)
        yield TensorToWrite(name=file_name(name), shape=tensor.shape, type=kind, values=read)
    rope = values["rope_parameters"]
    if rope["rope_type"] == "llama3":
        factors = llama3_factors(values["head_dim"], rope)
        yield TensorToWrite(name=ROPE_FACTORS, shape=factors.shape, type=WRITTEN_TYPES["f32"], values=lambda: factors)


def _values(bundle: Bundle, name: str, tensor: MappedTensor, layout: Literal["interleaved", "half"]) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.array().astype(np.float32)
    order = ordered_rows(bundle.config, name, tensor.shape[0], layout)
    return array if order is None else array[order]
