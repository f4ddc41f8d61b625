"""Safetensors files as raw bytes, for signatures, repacking and loading without a tensor library.

The format: 8 bytes little-endian header length, a JSON header of name -> {dtype, shape, data_offsets}, then the data.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.errors import BundleError
from openafm.core.regular_files import check_regular

MAX_HEADER_BYTES = 100_000_000
MAX_SHARD_BYTES = 4 << 30

_NUMPY_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,  # numpy has no bfloat16; values are widened when read
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


@dataclass(frozen=True, kw_only=True)
class MappedTensor:
    """A tensor in a memory-mapped file. `dtype` is a safetensors name ("F32", "BF16", ...)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def array(self) -> NDArray[Any]:
        """Return the values as a read-only array; bfloat16 is widened to float32, which is exact."""
        stored: NDArray[Any] = self.data.view(_NUMPY_DTYPES[self.dtype]).reshape(self.shape)
        return (stored.astype(np.uint32) << 16).view(np.float32) if self.dtype == "BF16" else stored

    def digest(self) -> str:
        """Return the SHA-256 of the bytes, in hex."""
        return hashlib.sha256(self.data.data).hexdigest()


class TensorSource(Protocol):
    """A tensor to copy: a mapped one, or one whose bytes are computed when `data` is read."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> Path: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> NDArray[np.uint8]: ...


def release_pages(tensor: MappedTensor) -> None:
    """Drop the pages of a tensor's file from this process's memory; they are read again when they are used."""
    data: Any = tensor.data
    while data is not None and not isinstance(data, mmap.mmap):
        data = getattr(data, "base", None)
    if data is not None and hasattr(data, "madvise"):
        data.madvise(mmap.MADV_DONTNEED)


def read_tensors(path: Path) -> dict[str, MappedTensor]:
    """Return the tensors of one safetensors file, mapped without a copy.

    Raises:
        BundleError: the file is missing or truncated, or its header is malformed.
    """
    try:
        check_regular(path)
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} is empty or cannot be read ({error}); restore the file") from error
    if len(data) < 8:
        raise BundleError(f"{path} has {len(data)} bytes, too few for a safetensors file; restore the file")
    (header_bytes,) = struct.unpack("<Q", data[:8].tobytes())
    if header_bytes > MAX_HEADER_BYTES:
        raise BundleError(f"{path} does not start with a safetensors header; it is damaged or another kind of file")
    if 8 + header_bytes > len(data):
        raise BundleError(f"{path} ends inside its header; restore the file")
    header = _parse_header(path, data[8 : 8 + header_bytes].tobytes())
    body = data[8 + header_bytes :]
    return {name: _stored(path, name, entry, body) for name, entry in header.items()}


def write_tensors(folder: Path, tensors: Mapping[str, NDArray[Any]], max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
    """Write `model.safetensors` to `folder`, or `model-00001.safetensors` ... if larger than `max_shard_bytes`."""
    from safetensors.numpy import save_file

    shards = list(_shards(tensors, max_shard_bytes))
    for index, names in enumerate(shards, start=1):
        file = folder / ("model.safetensors" if len(shards) == 1 else f"model-{index:05}.safetensors")
        save_file({name: np.asarray(tensors[name], order="C") for name in names}, file, {"format": "pt"})


def copy_tensors(folder: Path, tensors: Iterable[TensorSource], max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
    """Write tensors as `write_tensors` does, one in memory at a time. float16 becomes float32, which is exact.

    Raises:
        BundleError: a tensor has a dtype other than float32, bfloat16 and float16, or a value that is not finite.
    """
    copies = {tensor.name: _Copy(tensor) for tensor in tensors}
    shards = list(_shards(copies, max_shard_bytes))
    for index, names in enumerate(shards, start=1):
        file = folder / ("model.safetensors" if len(shards) == 1 else f"model-{index:05}.safetensors")
        with file.open("wb") as stream:
            _write_header(
                stream, [(name, copies[name].dtype, copies[name].tensor.shape, copies[name].nbytes) for name in names]
            )
            for name in names:
                for chunk in copies[name].chunks():
                    stream.write(chunk.data)


def write_file(stream: IO[bytes], tensors: Sequence[MappedTensor]) -> None:
    """Write tensors of any dtype as one safetensors file, unchecked."""
    _write_header(stream, [(tensor.name, tensor.dtype, tensor.shape, tensor.data.nbytes) for tensor in tensors])
    for tensor in tensors:
        stream.write(tensor.data.data)


def in_memory(name: str, array: NDArray[Any], dtype: str | None = None) -> MappedTensor:
    """Return an array as a tensor for `write_file`; `dtype` is needed for bfloat16 in uint16."""
    names = {np.dtype(kind): each for each, kind in _NUMPY_DTYPES.items() if each != "BF16"}
    data = np.ascontiguousarray(array)
    return MappedTensor(
        name=name, file=Path(), dtype=dtype or names[data.dtype], shape=array.shape, data=data.reshape(-1).view(np.uint8)
    )


def _write_header(stream: IO[bytes], entries: Iterable[tuple[str, str, tuple[int, ...], int]]) -> None:
    """Write the header for (name, dtype, shape, number of bytes) of each tensor, in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape, num_bytes in entries:
        offsets = [offset, offset := offset + num_bytes]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(struct.pack("<Q", len(text)) + text)


class _Copy:
    """Copy a tensor in chunks: check that values are finite, widen float16."""

    _CHUNK_BYTES = 1 << 26
    _EXPONENTS: ClassVar = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}  # exponents of infinities and NaN

    def __init__(self, tensor: TensorSource) -> None:
        if tensor.dtype not in self._EXPONENTS:
            known = ", ".join(self._EXPONENTS)
            raise BundleError(f"{tensor.file}: tensor '{tensor.name}' is {tensor.dtype}; supported are {known}")
        self.tensor, self.dtype = tensor, "F32" if tensor.dtype == "F16" else tensor.dtype
        self.nbytes = math.prod(tensor.shape) * (2 if tensor.dtype == "BF16" else 4)

    def chunks(self) -> Iterable[NDArray[Any]]:
        exponent, data = self._EXPONENTS[self.tensor.dtype], self.tensor.data
        for start in range(0, len(data), self._CHUNK_BYTES):
            chunk = np.array(data[start : start + self._CHUNK_BYTES])  # a copy, aligned
            bits: NDArray[Any] = chunk.view(np.uint32 if self.tensor.dtype == "F32" else np.uint16)
            if ((bits & exponent) == exponent).any():
                name = self.tensor.name
                raise BundleError(f"weight '{name}' holds a value that is not finite; the model diverged and was not saved")
            yield chunk.view(np.float16).astype(np.float32).view(np.uint8) if self.tensor.dtype == "F16" else chunk


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


def _shards(tensors: Mapping[str, _Sized], max_shard_bytes: int) -> Iterable[list[str]]:
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + tensor.nbytes > max_shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.nbytes
    yield names


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} does not start with a safetensors header ({error})") from error
    if not isinstance(header, dict):
        raise BundleError(f"{path} does not start with a safetensors header")
    header.pop("__metadata__", None)
    return header


def _stored(path: Path, name: str, entry: Any, body: NDArray[np.uint8]) -> MappedTensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        if dtype not in _NUMPY_DTYPES:
            raise ValueError(f"its dtype {dtype!r} is not one of {', '.join(_NUMPY_DTYPES)}")
        start, stop = entry["data_offsets"]
        expected = math.prod(shape) * np.dtype(_NUMPY_DTYPES[dtype]).itemsize
        if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
            raise ValueError(f"shape {shape} at {start} to {stop}")
        if stop - start != expected:
            raise ValueError(f"{stop - start} bytes for shape {shape} of {dtype}")
    except (KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path}: tensor '{name}' has an unreadable header entry ({error})") from error
    if stop > len(body):
        raise BundleError(f"{path} ends inside tensor '{name}'; restore the file")
    return MappedTensor(name=name, file=path, dtype=dtype, shape=shape, data=body[start:stop])
