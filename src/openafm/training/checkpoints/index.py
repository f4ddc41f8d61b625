"""The tensors in the files of a checkpoint.

A single process writes a file for each group (`model.safetensors`, `optimizer.safetensors`, ...) with whole tensors. Several
processes write one file each (`rank-00002-of-00004.safetensors`); `index.json` then lists the blocks of every tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from openafm.core.regular_files import read_document

INDEX = "index.json"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class TensorBlock:
    """A block of a tensor: the file and key that hold it, and its position in the tensor."""

    file: str
    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class IndexedTensor:
    """A tensor in files, in blocks that tile it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    blocks: tuple[TensorBlock, ...]


Index = Mapping[str, IndexedTensor]
"""The tensors of a checkpoint by GROUP/NAME, as in `model/layers.0.norm.weight`."""


def read_index(folder: Path, files: Sequence[str]) -> Index:
    """Return the tensors in the `files` of a checkpoint.

    Raises:
        OSError, ValueError: a file is missing, or the index is malformed.
    """
    if INDEX not in files:
        return {f"{Path(file).stem}/{name}": tensor for file in files for name, tensor in _whole(folder, file).items()}
    try:
        entries = json.loads(read_document(folder / INDEX))
        index = {key: _from_json(key, entry) for key, entry in entries.items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder / INDEX} is not an index of tensors: {error!r}") from error
    for key, tensor in index.items():
        if not _is_tiled(tensor):
            raise ValueError(f"{folder / INDEX} lists blocks that do not tile {key}")
        unknown = {block.file for block in tensor.blocks} - set(files)
        if unknown:
            raise ValueError(f"{folder / INDEX} lists the file {min(unknown)!r} for {key}, which the record does not")
    return index


def write_index(folder: Path, index: Index) -> None:
    """Write `index.json`, one tensor a line."""
    lines = (f"{json.dumps(key)}: {json.dumps(_to_json(tensor))}" for key, tensor in index.items())
    (folder / INDEX).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _is_tiled(tensor: IndexedTensor) -> bool:
    """Return True if the blocks form a grid that covers the tensor without overlap."""
    if math.prod(tensor.shape) == 0:
        return not tensor.blocks
    if any(len(block.offsets) != len(tensor.shape) or len(block.shape) != len(tensor.shape) for block in tensor.blocks):
        return False
    num_cells = 1
    for dim, size in enumerate(tensor.shape):
        edges = sorted({block.offsets[dim] for block in tensor.blocks})
        lengths = {start: stop - start for start, stop in zip(edges, [*edges[1:], size], strict=True)}
        if edges[:1] != [0] or any(block.shape[dim] != lengths[block.offsets[dim]] for block in tensor.blocks):
            return False
        num_cells *= len(edges)
    return len({block.offsets for block in tensor.blocks}) == len(tensor.blocks) == num_cells


def _whole(folder: Path, file: str) -> dict[str, IndexedTensor]:
    """Return the tensors of a file of whole tensors."""
    found = {}
    with safe_open(folder / file, framework="pt") as opened:
        for key in opened.keys():  # noqa: SIM118 (not a mapping)
            header = opened.get_slice(key)
            shape, dtype = tuple(header.get_shape()), header.get_dtype()
            if dtype not in _DTYPES:
                raise ValueError(f"{folder / file} holds {key} as {dtype}; allowed are {', '.join(_DTYPES)}")
            block = TensorBlock(file=file, key=key, offsets=(0,) * len(shape), shape=shape)
            found[key] = IndexedTensor(dtype=_DTYPES[dtype], shape=shape, blocks=(block,))
    return found


def _to_json(tensor: IndexedTensor) -> dict[str, Any]:
    blocks = [{"file": block.file, "offsets": block.offsets, "shape": block.shape} for block in tensor.blocks]
    return {"dtype": _NAMES[tensor.dtype], "shape": tensor.shape, "parts": blocks}


def _from_json(key: str, entry: Mapping[str, Any]) -> IndexedTensor:
    return IndexedTensor(
        dtype=_DTYPES[entry["dtype"]],
        shape=_sizes(entry["shape"]),
        blocks=tuple(
            TensorBlock(file=block["file"], key=key, offsets=_sizes(block["offsets"]), shape=_sizes(block["shape"]))
            for block in entry["parts"]
        ),
    )


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise TypeError(f"expected a list of sizes, got {values!r}")
    return tuple(values)
