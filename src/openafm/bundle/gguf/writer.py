"""Write GGUF files, version 3, little-endian: metadata, then tensors one at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.gguf.reader import ARRAY, DEFAULT_ALIGNMENT, MAGIC, STRING, VERSIONS
from openafm.bundle.gguf.types import Bytes, Floats
from openafm.core.files import atomic_file

_U32, _I32, _F32, _BOOL = 4, 5, 6, 7


@dataclass(frozen=True, kw_only=True)
class WrittenType:
    """A type that can be written: its number, values and bytes of a block, and the function that encodes rows."""

    number: int
    block_values: int
    block_bytes: int
    encode: Callable[[Floats], Bytes]


def _f32(values: Floats) -> Bytes:
    return values.reshape(-1).view(np.uint8)


def _f16(values: Floats) -> Bytes:
    return values.astype(np.float16).reshape(-1).view(np.uint8)


def _bf16(values: Floats) -> Bytes:
    bits = values.reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to the nearest, ties to even
    return rounded.astype(np.uint16).view(np.uint8)


def _q8_0(values: Floats) -> Bytes:
    groups = values.reshape(-1, 32)
    scales = (np.abs(groups).max(axis=1, keepdims=True) / 127).astype(np.float32)
    codes = _round(groups * _inverse(scales)).astype(np.int8)
    return np.concatenate([scales.astype(np.float16).view(np.uint8), codes.view(np.uint8)], axis=1).reshape(-1)


def _q4_0(values: Floats) -> Bytes:
    groups = values.reshape(-1, 32)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=1, keepdims=True), axis=1)
    scales = (largest / -8).astype(np.float32)
    codes = np.clip(np.trunc(groups * _inverse(scales) + 8.5), 0, 15).astype(np.uint8)
    packed = codes[:, :16] | codes[:, 16:] << 4
    return np.concatenate([scales.astype(np.float16).view(np.uint8), packed], axis=1).reshape(-1)


def _inverse(scales: Floats) -> Floats:
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)


def _round(values: Floats) -> Floats:
    """Round to the nearest integer, halves away from zero."""
    return np.trunc(values + np.copysign(np.float32(0.5), values))


WRITTEN_TYPES = {
    "f32": WrittenType(number=0, block_values=1, block_bytes=4, encode=_f32),
    "f16": WrittenType(number=1, block_values=1, block_bytes=2, encode=_f16),
    "bf16": WrittenType(number=30, block_values=1, block_bytes=2, encode=_bf16),
    "q8_0": WrittenType(number=8, block_values=32, block_bytes=34, encode=_q8_0),
    "q4_0": WrittenType(number=2, block_values=32, block_bytes=18, encode=_q4_0),
}


@dataclass(frozen=True, kw_only=True)
class TensorToWrite:
    """A tensor: its shape, its type in the file, and a function that returns its values."""

    name: str
    shape: tuple[int, ...]
    type: WrittenType
    values: Callable[[], NDArray[np.float32]]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape)) // self.type.block_values * self.type.block_bytes


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorToWrite]) -> None:
    """Write a file at `path`, atomically; only one tensor is in memory at a time.

    Raises:
        OutOfSpaceError: the disk is full; `path` is unchanged.
    """
    header = MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata))
    header += b"".join(_string(key) + _typed(value) for key, value in metadata.items())
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        header += _string(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        header += struct.pack("<IQ", tensor.type.number, offset)
        offset += _padded(tensor.num_bytes)
    with atomic_file(path) as stream:
        stream.write(header.ljust(_padded(len(header)), b"\0"))
        for tensor in tensors:
            encoded = tensor.type.encode(np.ascontiguousarray(tensor.values(), np.float32))
            stream.write(encoded.tobytes().ljust(_padded(tensor.num_bytes), b"\0"))


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", STRING) + _string(value)
    return struct.pack("<I", ARRAY) + _array(value)


def _array(values: Iterable[Any]) -> bytes:
    items = list(values)
    if items and isinstance(items[0], str):
        return struct.pack("<IQ", STRING, len(items)) + b"".join(map(_string, items))
    if items and isinstance(items[0], float):
        return struct.pack(f"<IQ{len(items)}f", _F32, len(items), *items)
    return struct.pack(f"<IQ{len(items)}i", _I32, len(items), *items)
