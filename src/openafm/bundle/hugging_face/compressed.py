"""Weights of a checkpoint in the formats of the native engine, one part of the model at a time.

Each layer is one file of the bundle, and so are the tensors outside of the layers. A file is written whole or not at all, so
an import that was killed continues after the last complete file. Memory holds one matrix in fp32 and one layer's codes; of
the embedding and the head some rows in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.errors import BundleError
from openafm.bundle.tensor_file import MappedTensor, TensorSource, in_memory, read_tensors, release_pages, write_file
from openafm.compression.errors import CompressionError
from openafm.compression.grouped import FORMATS, NEAREST, GroupedMatrix, GroupFormat
from openafm.compression.int8_rows import is_vision, with_vision_in_8_bits
from openafm.compression.numerics import Numerics
from openafm.compression.post_training.groups import RangeConfig
from openafm.core.files import atomic_file


class LayerMethod(Protocol):
    """A post-training method that rounds the matrices of one layer after the other (post_training/layerwise.py).

    `begin` and `finish` get the original and the rounded weights of a layer, named as in the layer; `quantize` the name of a
    matrix without `.weight`. A layer that an earlier, killed import has written is only finished.
    """

    def begin(self, index: int, weights: Mapping[str, NDArray[np.float32]]) -> None: ...

    def quantize(self, name: str, weight_RC: NDArray[np.float32], format: GroupFormat) -> GroupedMatrix: ...

    def finish(self, index: int, weights: Mapping[str, NDArray[np.float32]]) -> None: ...


@runtime_checkable
class CodedSource(Protocol):
    """A tensor source that has codes and scales of its own."""

    def grouped(self, format: str) -> GroupedMatrix | None:
        """Return its codes in a format of `FORMATS`, None if it has none there and must be rounded."""
        ...


_CHUNK_NUMBERS = 1 << 24  # of a matrix outside of the layers in fp32 at once


def write_parts(
    folder: Path,
    tensors: Sequence[TensorSource],
    numerics: Numerics,
    method: LayerMethod | None = None,
    range: RangeConfig = NEAREST,
    on_part: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the weights as `model-00001.safetensors`, ... into a folder that may have some of these files already.

    Args:
        method: rounds the matrices of the layers; by default they are rounded one by one.
        range: how to choose the levels of 4-bit matrices of the layers without a method.
        on_part: called with the number of finished files and of all.

    Raises:
        BundleError: a weight is damaged, not finite, or has an unknown dtype.
        OutOfSpaceError: the disk is full.
    """
    parts = _parts(tensors)
    for number, part in enumerate(parts, start=1):
        file, layer = folder / f"model-{number:05}.safetensors", number - 2
        is_calibrated = method is not None and layer >= 0
        if not file.exists():
            if method is not None and is_calibrated:
                method.begin(layer, {_in_layer(tensor.name): _whole(tensor) for tensor in part})
            made = [stored for tensor in part for stored in _stored(tensor, numerics, method, range)]
            with atomic_file(file) as stream:
                write_file(stream, made)
            for tensor in part:
                if isinstance(tensor, MappedTensor):
                    release_pages(tensor)
        if method is not None and is_calibrated and number < len(parts):
            method.finish(layer, _read_back(file, part, numerics))
        on_part(number, len(parts))


def _read_back(file: Path, part: Sequence[TensorSource], numerics: Numerics) -> dict[str, NDArray[np.float32]]:
    """Return the rounded weights of a layer in fp32, from its file."""
    arrays = {name: tensor.array() for name, tensor in read_tensors(file).items()}
    found: dict[str, NDArray[np.float32]] = {}
    for tensor in part:
        format = FORMATS.get(numerics.weights_of(tensor.name.removesuffix(".weight")))
        if len(tensor.shape) == 2 and format is not None:
            shape = (tensor.shape[0], tensor.shape[1])
            found[_in_layer(tensor.name)] = GroupedMatrix.from_tensors(tensor.name, arrays, format, shape).dequantize()
        else:
            found[_in_layer(tensor.name)] = arrays[tensor.name]
    return found


def _in_layer(name: str) -> str:
    """Return the name of a tensor in its layer: without `layers.N.`."""
    return name.split(".", 2)[2]


def _whole(tensor: TensorSource) -> NDArray[np.float32]:
    return np.concatenate([*finite_rows(tensor), np.zeros((0, *tensor.shape[1:]), np.float32)])


def embeddings_of(tensors: Sequence[TensorSource], tokens_BS: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the embeddings [B, S, D] of tokens in fp32; memory holds these and some rows of the matrix."""
    embedding = next(tensor for tensor in tensors if tensor.name == "embedding")
    used, places = np.unique(tokens_BS, return_inverse=True)
    found, start = list[NDArray[np.float32]](), 0
    for rows in finite_rows(embedding):
        found.append(rows[used[(used >= start) & (used < start + len(rows))] - start])
        start += len(rows)
    embedded: NDArray[np.float32] = np.concatenate(found)[places.reshape(tokens_BS.shape)]
    return embedded


def _parts(tensors: Sequence[TensorSource]) -> list[list[TensorSource]]:
    """Return the tensors outside of the layers, then those of each layer."""
    layers: dict[int, list[TensorSource]] = {-1: []}
    for tensor in tensors:
        layer = int(tensor.name.split(".")[1]) if tensor.name.startswith("layers.") else -1
        layers.setdefault(layer, []).append(tensor)
    return [layers[layer] for layer in sorted(layers)]


def _stored(
    tensor: TensorSource, numerics: Numerics, method: LayerMethod | None, range: RangeConfig
) -> Iterator[MappedTensor]:
    """Yield the tensors of the bundle that hold a weight of the checkpoint."""
    name = tensor.name
    if len(tensor.shape) != 2 or name == "vision.registers_RD":
        yield in_memory(name, _whole(tensor))
        return
    if is_vision(name) and numerics.vision != "float32":
        rounded, _ = with_vision_in_8_bits({name: _whole(tensor)}, numerics)
        yield from (in_memory(each, array) for each, array in rounded.items())
        return
    is_inside = name.startswith("layers.")
    weights = numerics.weights_of(name.removesuffix(".weight")) if is_inside else numerics.embedding
    if weights == "bfloat16":
        yield in_memory(name, np.concatenate([bfloat16(rows) for rows in finite_rows(tensor)]), dtype="BF16")
        return
    chosen = range if is_inside else NEAREST
    try:
        if is_inside and method is not None:
            matrix = method.quantize(name.removesuffix(".weight"), _whole(tensor), FORMATS[weights])
            arrays = matrix.tensors(name)
        elif (own := _own_codes(tensor, weights, chosen)) is not None:
            arrays = own.tensors(name)
        else:
            chunks = [FORMATS[weights].quantize(rows, name, chosen).tensors(name) for rows in finite_rows(tensor)]
            arrays = {each: np.concatenate([chunk[each] for chunk in chunks]) for each in chunks[0]}
    except CompressionError as error:
        raise BundleError(f"{tensor.file}: {error}") from error
    for each, array in arrays.items():
        yield in_memory(each, array)


def _own_codes(tensor: TensorSource, weights: str, range: RangeConfig) -> GroupedMatrix | None:
    return tensor.grouped(weights) if isinstance(tensor, CodedSource) and range == NEAREST else None


def finite_rows(tensor: TensorSource) -> Iterator[NDArray[np.float32]]:
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


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(rounded & 0x7F80 == 0x7F80, bits >> 16, rounded).astype(np.uint16)  # stay finite
