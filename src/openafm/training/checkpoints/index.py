"""Which tensors stand in the files of a checkpoint, whether one process wrote them or many.

One process writes a file for each group (`model.safetensors`, `optimizer.safetensors`, ...), in which each tensor is whole.
Of many, each writes one of its own (`rank-00002-of-00004.safetensors`); `index.json` tells of what parts a tensor is made.
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
    """A block of a tensor: under which key in which file it stands, and where in the tensor it begins."""

    file: str
    key: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class IndexedTensor:
    """A tensor in files, in parts that cover it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[TensorBlock, ...]


Index = Mapping[str, IndexedTensor]
"""The tensors of a checkpoint by GROUP/NAME, as in `model/layers.0.norm.weight`."""


def read_index(folder: Path, files: Sequence[str]) -> Index:
    """What stands in the `files` of a checkpoint.

    Raises:
        OSError, ValueError: a file is missing, or the index is none.
    """
    if INDEX not in files:
        return {f"{Path(file).stem}/{name}": tensor for file in files for name, tensor in _whole(folder, file).items()}
    try:
        entries = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        index = {key: _from_json(key, entry) for key, entry in entries.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / INDEX} is not an index of tensors: {error!r}") from error
    for key, tensor in index.items():
        if sum(math.prod(part.shape) for part in tensor.parts) != math.prod(tensor.shape):
            raise ValueError(f"{folder / INDEX} names parts that do not make up {key}")
        if not {part.file for part in tensor.parts} <= set(files):
            raise ValueError(f"{folder / INDEX} names a file for {key} that the record does not")
    return index


def write_index(folder: Path, index: Index) -> None:
    """Write `index.json`, one tensor a line."""
    lines = (f"{json.dumps(key)}: {json.dumps(_to_json(tensor))}" for key, tensor in index.items())
    (folder / INDEX).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _whole(folder: Path, file: str) -> dict[str, IndexedTensor]:
    """The tensors of a file that holds each of them whole."""
    found = {}
    with safe_open(folder / file, framework="pt") as opened:
        for key in opened.keys():  # noqa: SIM118 (not a mapping)
            header = opened.get_slice(key)
            shape = tuple(header.get_shape())
            part = TensorBlock(file=file, key=key, offsets=(0,) * len(shape), shape=shape)
            found[key] = IndexedTensor(dtype=_DTYPES[header.get_dtype()], shape=shape, parts=(part,))
    return found


def _to_json(tensor: IndexedTensor) -> dict[str, Any]:
    parts = [{"file": part.file, "offsets": part.offsets, "shape": part.shape} for part in tensor.parts]
    return {"dtype": _NAMES[tensor.dtype], "shape": tensor.shape, "parts": parts}


def _from_json(key: str, entry: Mapping[str, Any]) -> IndexedTensor:
    return IndexedTensor(
        dtype=_DTYPES[entry["dtype"]],
        shape=tuple(entry["shape"]),
        parts=tuple(
            TensorBlock(file=part["file"], key=key, offsets=tuple(part["offsets"]), shape=tuple(part["shape"]))
            for part in entry["parts"]
        ),
    )
