"""Formats of the native engine that are nearest to the types of a GGUF file, and how far they are from its values.

| type | format | values |
|---|---|---|
| Q8_0, Q4_0, Q4_1 | 8 bits, 4 bits symmetric, 4 bits with minima, in groups of 32 | codes and scales of the file |
| Q4_K | 4 bits with minima in groups of 32 | codes of the file; products of two scales rounded to fp16 |
| Q5_K, Q6_K | 8 bits in groups of 32 | rounded |
| BF16 | bfloat16 | those of the file |
| F16, and F32 beside other types | bfloat16 | rounded |

The embedding and a head of its own share one format: the finer one of the two.

Shapes: R outputs, C inputs, G groups of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.gguf.architecture import file_name
from openafm.bundle.gguf.reader import GGUFTensor
from openafm.bundle.gguf.types import Groups
from openafm.bundle.hugging_face.compressed import bfloat16
from openafm.compression.grouped import FORMATS, LARGEST, MIDDLE, GroupedMatrix
from openafm.compression.numerics import MatrixNumerics, Numerics

Format: TypeAlias = Literal["int4_symmetric_group32", "int4_group32", "int8_group32", "bfloat16"]

_FORMATS: dict[str, Format] = {
    "Q4_0": "int4_symmetric_group32",
    "Q4_1": "int4_group32",
    "Q4_K": "int4_group32",
    "Q5_K": "int8_group32",
    "Q6_K": "int8_group32",
    "Q8_0": "int8_group32",
    "F16": "bfloat16",
    "BF16": "bfloat16",
    "F32": "bfloat16",
}
_COARSE_TO_FINE: tuple[Format, ...] = ("int4_symmetric_group32", "int4_group32", "int8_group32", "bfloat16")
_EXACT = {
    ("Q8_0", "int8_group32"),
    ("Q4_0", "int4_symmetric_group32"),
    ("Q4_0", "int8_group32"),
    ("Q4_1", "int4_group32"),
    ("BF16", "bfloat16"),
}
_CODES = _EXACT | {("Q4_K", "int4_group32")}
_CHUNK_BLOCKS = 1 << 16  # read at once: temporary arrays stay below 100 MB
_SAMPLED_ROWS = 256  # of a converted matrix, whose error is measured


class NamedTensor(Protocol):
    """A tensor of the file under its name in the decoder."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> GGUFTensor: ...


def nearest_numerics(tensors: Sequence[NamedTensor]) -> Numerics | None:
    """Return the numerics of the nearest formats; None if all matrices are F32, which runs natively as it is."""
    matrices = [tensor for tensor in tensors if len(tensor.source.shape) == 2]
    if all(tensor.source.type.name == "F32" for tensor in matrices):
        return None
    formats = {tensor.name.removesuffix(".weight"): _FORMATS[tensor.source.type.name] for tensor in matrices}
    sizes: Counter[Format] = Counter()
    for tensor in matrices:
        if tensor.name.startswith("layers."):
            sizes[formats[tensor.name.removesuffix(".weight")]] += tensor.source.blocks.size
    usual = sizes.most_common(1)[0][0]
    outside = [format for name, format in formats.items() if not name.startswith("layers.")]
    return Numerics(
        weights=usual,
        embedding=max(outside, key=_COARSE_TO_FINE.index),
        activations="float32" if set(formats.values()) == {"bfloat16"} else "int8_per_token",
        kv="int8_per_token_head",
        exceptions=tuple(
            MatrixNumerics(prefix=name, weights=format)
            for name, format in formats.items()
            if name.startswith("layers.") and format != usual
        ),
    )


def grouped(tensor: GGUFTensor, format: str) -> GroupedMatrix | None:
    """Return a matrix with the codes of the file; None if the format cannot hold them.

    Scales of Q4_K are rounded to fp16; those of the other types are stored in fp16.
    """
    if (tensor.type.name, format) not in _CODES or tensor.type.groups is None:
        return None
    blocks_B = tensor.blocks.reshape(-1, tensor.type.block_bytes)
    starts = range(0, len(blocks_B), _CHUNK_BLOCKS)
    parts = [_halved(tensor.type.groups(np.ascontiguousarray(blocks_B[at : at + _CHUNK_BLOCKS]))) for at in starts]
    codes, scales, minima = (list(column) for column in zip(*parts, strict=True))
    num_rows = tensor.shape[0]
    codes_RC, scale_RG = np.concatenate(codes).reshape(num_rows, -1), np.concatenate(scales).reshape(num_rows, -1)
    found = FORMATS[format]
    minimum_RG = np.concatenate(minima).reshape(num_rows, -1) if found.has_minimum else None
    numbers = [scale_RG] if minimum_RG is None else [scale_RG, minimum_RG]
    if not all(np.isfinite(each).all() for each in numbers) or codes_RC.min() < -LARGEST:
        return None
    if found.bits == 4:
        codes_RC = (codes_RC + np.int8(0 if found.has_minimum else MIDDLE)).view(np.uint8)
    return GroupedMatrix(format=found, codes_RC=codes_RC, scale=scale_RG, minimum_RG=minimum_RG)


def _halved(groups: Groups) -> tuple[NDArray[np.int8], NDArray[np.float16], NDArray[np.float16]]:
    minimum_G = np.zeros(0, np.float32) if groups.minimum_G is None else groups.minimum_G
    with np.errstate(over="ignore"):  # infinities are checked
        return groups.codes_Gg, groups.scale_G.astype(np.float16), minimum_G.astype(np.float16)


def outcome_notes(tensors: Sequence[NamedTensor], numerics: Numerics) -> list[str]:
    """Return which matrices keep the values of the file, and which are converted, with the largest error."""
    kept, converted = dict[tuple[str, str], list[NamedTensor]](), dict[tuple[str, str], list[NamedTensor]]()
    total = num_kept = 0
    for tensor in tensors:
        if len(tensor.source.shape) != 2:
            continue
        is_inside = tensor.name.startswith("layers.")
        format = numerics.weights_of(tensor.name.removesuffix(".weight")) if is_inside else numerics.embedding
        pair, size = (tensor.source.type.name, format), int(np.prod(tensor.source.shape))
        is_kept = pair in _EXACT and not _has_lowest_code(tensor.source)
        (kept if is_kept else converted).setdefault(pair, []).append(tensor)
        total, num_kept = total + size, num_kept + size * is_kept
    notes = [f"{type} keeps its values as {stored}: {_places(each)}" for (type, stored), each in kept.items()]
    for (type, stored), each in converted.items():
        error = max(_relative_error(tensor.source, stored) for tensor in each)
        notes.append(f"{type} is converted to {stored}: {_places(each)}; relative error up to {error:.2g}")
    if converted:
        notes.append(
            f"{num_kept / total:.0%} of the weights keep their values; --weights float32 keeps all, for float products"
        )
    return notes


def _has_lowest_code(tensor: GGUFTensor) -> bool:
    """Return True if a code is -128, which quantizers do not write and int8 formats do not have."""
    if tensor.type.name != "Q8_0":
        return False
    return bool((tensor.blocks.reshape(-1, tensor.type.block_bytes)[:, 2:] == 128).any())


def _places(tensors: Sequence[NamedTensor]) -> str:
    """Return the names of matrices in the file, each with its number of layers."""
    counts = Counter(_in_file(tensor.name) for tensor in tensors)
    inside = {_in_file(tensor.name) for tensor in tensors if tensor.name.startswith("layers.")}
    layers = {name: f" ({count} layer{'s' if count > 1 else ''})" for name, count in counts.items() if name in inside}
    return ", ".join(name + layers.get(name, "") for name in counts)


def _in_file(name: str) -> str:
    return file_name(name).removesuffix(".weight").split(".")[-1]


def _relative_error(tensor: GGUFTensor, format: str) -> float:
    """Return the norm of the difference to the file over the norm of the values, on some rows of the matrix."""
    num_rows = len(range(tensor.shape[0]))
    rows = np.unique(np.linspace(0, num_rows - 1, min(_SAMPLED_ROWS, num_rows)).astype(int))
    sample = replace(
        tensor, shape=(len(rows), tensor.shape[1]), blocks=tensor.blocks.reshape(num_rows, -1)[rows].reshape(-1)
    )
    values = sample.values()
    if not np.isfinite(values).all() or not values.any():  # not finite: refused when the matrix is written
        return 0.0
    if format == "bfloat16":
        stored = (bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    else:
        stored = (grouped(sample, format) or FORMATS[format].quantize(values, tensor.name)).dequantize()
    return float(np.linalg.norm(stored - values) / np.linalg.norm(values))
