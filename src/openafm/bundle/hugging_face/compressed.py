"""Weights of a checkpoint in the formats of the native engine, one part of the model at a time.

Each layer is one file of the bundle, and so are the tensors outside of the layers. A file is written whole or not at all, so
an import that was killed continues after the last complete file. Memory holds one matrix in fp32 and one layer's codes; of
the embedding and the head some rows in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.errors import BundleError
from openafm.bundle.hugging_face.errors import HuggingFaceError
from openafm.bundle.tensor_file import MappedTensor, in_memory, write_file
from openafm.compression.errors import CompressionError
from openafm.compression.grouped import FORMATS, GroupedMatrix, GroupFormat
from openafm.compression.numerics import MatrixNumerics, Numerics, WeightNumerics
from openafm.core.files import atomic_file
from openafm.models.config import DecoderConfig

Weights: TypeAlias = Literal["int4", "int8", "bf16"]
QuantizeMatrix: TypeAlias = Callable[[str, NDArray[np.float32], GroupFormat], GroupedMatrix]
"""(name of a matrix of the layers without `.weight`, its values [R, C], its format) -> the rounded matrix."""

_CHUNK_NUMBERS = 1 << 24  # of a matrix outside of the layers in fp32 at once
_GROUPS: dict[str, tuple[WeightNumerics, ...]] = {  # the first one whose groups divide the inputs
    "int4": ("int4_group64", "int4_group32"),
    "int8": ("int8_group128", "int8_group64", "int8_group32"),
}
_EMBEDDINGS: dict[str, tuple[Any, ...]] = {"int4": ("int4_group32",), "int8": _GROUPS["int8"]}


def native_numerics(config: DecoderConfig, weights: Weights) -> Numerics:
    """Return numerics that the native engine computes: these weights and embedding, 8-bit activations, keys and values.

    Matrices whose inputs do not divide into the usual groups have smaller ones. bf16 weights multiply fp32 activations.

    Raises:
        HuggingFaceError: a width of the model is not a multiple of 32.
    """
    if weights == "bf16":
        return Numerics(weights="bfloat16", embedding="bfloat16", kv="int8_per_token_head")
    usual = _GROUPS[weights][0]
    widths = _input_widths(config)
    exceptions = tuple(
        MatrixNumerics(prefix=name, weights=format)
        for name, width in widths.items()
        if (format := _fitting(_GROUPS[weights], width, name)) != usual
    )
    return Numerics(
        weights=usual,
        embedding=_fitting(_EMBEDDINGS[weights], config.dim, "the embedding"),
        activations="int8_per_token",
        kv="int8_per_token_head",
        exceptions=exceptions,
    )


def _fitting(formats: Sequence[Any], width: int, name: str) -> Any:
    for format in formats:
        if width % FORMATS[format].group == 0:
            return format
    raise HuggingFaceError(f"{name} has {width} inputs; groups of 4 and 8 bits need a multiple of 32: use --weights bf16")


def _input_widths(config: DecoderConfig) -> dict[str, int]:
    """Return the number of inputs of every matrix of the layers by name."""
    import torch

    from openafm.compression.low_bit import layer_linears

    with torch.device("meta"):
        return {name: linear.in_dim for name, linear in layer_linears(config.build()).items()}


def write_parts(
    folder: Path,
    tensors: Sequence[MappedTensor],
    numerics: Numerics,
    quantize: QuantizeMatrix | None = None,
    on_part: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the weights as `model-00001.safetensors`, ... into a folder that may have some of these files already.

    Args:
        quantize: rounds the matrices of the layers; to nearest by default.
        on_part: called with the number of finished files and of all.

    Raises:
        BundleError: a weight is damaged, not finite, or has an unknown dtype.
        OutOfSpaceError: the disk is full.
    """
    parts = _parts(tensors)
    for number, part in enumerate(parts, start=1):
        file = folder / f"model-{number:05}.safetensors"
        if not file.exists():
            made = [stored for tensor in part for stored in _stored(tensor, numerics, quantize)]
            with atomic_file(file) as stream:
                write_file(stream, made)
        on_part(number, len(parts))


def part_of_layer(folder: Path, layer: int) -> Path:
    """Return the file of a layer."""
    return folder / f"model-{layer + 2:05}.safetensors"


def _parts(tensors: Sequence[MappedTensor]) -> list[list[MappedTensor]]:
    """Return the tensors outside of the layers, then those of each layer."""
    layers: dict[int, list[MappedTensor]] = {-1: []}
    for tensor in tensors:
        layer = int(tensor.name.split(".")[1]) if tensor.name.startswith("layers.") else -1
        layers.setdefault(layer, []).append(tensor)
    return [layers[layer] for layer in sorted(layers)]


def _stored(tensor: MappedTensor, numerics: Numerics, quantize: QuantizeMatrix | None) -> Iterator[MappedTensor]:
    """Yield the tensors of the bundle that hold a weight of the checkpoint."""
    name = tensor.name
    if len(tensor.shape) != 2:
        yield in_memory(name, np.concatenate([*finite_rows(tensor), np.zeros(0, np.float32)]))
        return
    is_inside = name.startswith("layers.")
    weights = numerics.weights_of(name.removesuffix(".weight")) if is_inside else numerics.embedding
    if weights == "bfloat16":
        yield in_memory(name, np.concatenate([_bfloat16(rows) for rows in finite_rows(tensor)]), dtype="BF16")
        return
    try:
        if is_inside and quantize is not None:
            matrix = quantize(name.removesuffix(".weight"), np.concatenate(list(finite_rows(tensor))), FORMATS[weights])
            arrays = matrix.tensors(name)
        else:
            rounded = [FORMATS[weights].quantize(rows, name).tensors(name) for rows in finite_rows(tensor)]
            arrays = {each: np.concatenate([chunk[each] for chunk in rounded]) for each in rounded[0]}
    except CompressionError as error:
        raise BundleError(f"{tensor.file}: {error}") from error
    for each, array in arrays.items():
        yield in_memory(each, array)


def finite_rows(tensor: MappedTensor) -> Iterator[NDArray[np.float32]]:
    """Yield a tensor of a checkpoint in fp32, some rows at a time.

    Raises:
        BundleError: it has an integer dtype or holds a value that is not finite.
    """
    if tensor.dtype not in ("F32", "BF16", "F16"):
        raise BundleError(f"{tensor.file}: tensor '{tensor.name}' is {tensor.dtype}; supported are F32, BF16, F16")
    stored = tensor.data.view(np.uint16 if tensor.dtype == "BF16" else f"f{2 if tensor.dtype == 'F16' else 4}")
    stored = stored.reshape(tensor.shape)
    rows = max(1, _CHUNK_NUMBERS // max(1, stored[:1].size))
    for start in range(0, len(stored), rows):
        chunk = stored[start : start + rows]
        values = (chunk.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "BF16" else chunk.astype(np.float32)
        if not np.isfinite(values).all():
            raise BundleError(f"{tensor.file}: weight '{tensor.name}' holds a value that is not finite; restore the file")
        yield values


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(rounded & 0x7F80 == 0x7F80, bits >> 16, rounded).astype(np.uint16)  # stay finite
