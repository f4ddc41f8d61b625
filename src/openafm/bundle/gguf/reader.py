"""Read GGUF files, versions 2 and 3, little-endian: metadata, and tensors mapped without a copy.

The format: magic, version, counts; metadata as (key, type, value); tensors as (name, dims, type, offset); padding; data.
Every length is checked against the file before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle.gguf.errors import GGUFError
from openafm.bundle.gguf.types import TENSOR_TYPES, TensorType
from openafm.core.regular_files import NotAFileError, check_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` of the scalar types of metadata."""
_SHORTEST_STRING = 8  # a string without characters is its length
_SHORTEST_PAIR, _SHORTEST_TENSOR = 13, 32  # the fewest bytes of a metadata pair and of a tensor's entry


@dataclass(frozen=True, kw_only=True)
class GGUFTensor:
    """A tensor in a mapped file. `shape` has the slowest dim first, as in numpy; GGUF stores the opposite order."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    blocks: NDArray[np.uint8]

    def values(self) -> NDArray[np.float32]:
        """Return the values in float32, exactly."""
        return self.type.dequantize(self.blocks).reshape(self.shape)


@dataclass(frozen=True, kw_only=True)
class GGUFFile:
    """Metadata by key and tensors by name of one file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Return metadata and tensors of a GGUF file.

    Raises:
        GGUFError: the file is damaged, big-endian, of another version, or has a tensor of an unsupported type.
    """
    try:
        check_regular(path)
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except NotAFileError as error:
        raise GGUFError(str(error)) from error
    except (OSError, ValueError) as error:
        raise GGUFError(f"{path} is empty or cannot be read ({error}); restore the file") from error
    try:
        return _Parser(path, data).file()
    except _Damage as damage:
        raise GGUFError(f"{path} is damaged at byte {damage.position:,}: {damage.problem}; restore the file") from damage


class _Damage(Exception):  # noqa: N818 - internal, becomes a GGUFError
    def __init__(self, position: int, problem: str) -> None:
        super().__init__(problem)
        self.position, self.problem = position, problem


class _Parser:
    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self._path, self._data, self._view = path, data, data.data
        self._position = 0

    def file(self) -> GGUFFile:
        self._check_header()
        num_tensors, num_pairs = self._count(_SHORTEST_TENSOR), self._count(_SHORTEST_PAIR)
        metadata = self._unique(num_pairs, self._pair)
        entries = self._unique(num_tensors, self._entry)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise GGUFError(f"{self._path}: general.alignment is {alignment!r}; it must be a power of two")
        start = -(-self._position // alignment) * alignment
        tensors = {name: self._tensor(name, entry, start, alignment) for name, entry in entries.items()}
        return GGUFFile(path=self._path, metadata=metadata, tensors=tensors)

    def _check_header(self) -> None:
        if bytes(self._view[:4]) != MAGIC:
            raise GGUFError(f"{self._path} is not a GGUF file: it starts with {bytes(self._view[:4])!r} instead of b'GGUF'")
        self._position = 4
        version = self._scalar("I")
        if version & 0xFFFF == 0:
            raise GGUFError(f"{self._path} is a big-endian GGUF file; convert it to little-endian")
        if version not in VERSIONS:
            raise GGUFError(
                f"{self._path} is GGUF version {version}; supported are versions 2 and 3, convert the model again"
            )

    def _unique(self, count: int, read: Callable[[], tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            start = self._position
            key, value = read()
            if key in found:
                raise _Damage(start, f"{key!r} occurs twice")
            found[key] = value
        return found

    def _pair(self) -> tuple[str, Any]:
        key = self._string()
        return key, self._value(self._scalar("I"))

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array()
        raise _Damage(self._position, f"{kind} is not a type of metadata")

    def _array(self) -> list[Any]:
        kind = self._scalar("I")
        if kind == STRING:
            return [self._string() for _ in range(self._count(_SHORTEST_STRING))]
        if kind not in SCALARS:
            raise _Damage(self._position, f"arrays of type {kind} are not supported")
        size = struct.calcsize(SCALARS[kind])
        count = self._count(size)
        start = self._advance(count * size)
        return list(struct.unpack_from(f"<{count}{SCALARS[kind]}", self._view, start))

    def _entry(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name = self._string()
        num_dims = self._scalar("I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise _Damage(self._position, f"tensor {name!r} has {num_dims} dims, more than {MAX_DIMS} or none")
        shape = tuple(self._scalar("Q") for _ in range(num_dims))[::-1]
        return name, (shape, self._scalar("I"), self._scalar("Q"))

    def _tensor(self, name: str, entry: tuple[tuple[int, ...], int, int], start: int, alignment: int) -> GGUFTensor:
        shape, kind, offset = entry
        found = TENSOR_TYPES.get(kind)
        if found is None or found.decode is None:
            known = ", ".join(each.name for each in TENSOR_TYPES.values() if each.decode)
            stated = found.name if found else f"unknown type {kind}"
            raise GGUFError(
                f"{self._path}: tensor '{name}' is {stated}; supported are {known}. Convert the model to one of them"
            )
        if min(shape) < 1 or shape[-1] % found.block_values:
            raise GGUFError(
                f"{self._path}: tensor '{name}' has shape {shape}; rows of {found.name} have a multiple of "
                f"{found.block_values} values. Restore the file"
            )
        num_bytes = math.prod(shape) // found.block_values * found.block_bytes
        first = start + offset
        if offset % alignment or first + num_bytes > len(self._data):
            raise GGUFError(f"{self._path}: tensor '{name}' of {num_bytes:,} bytes is not inside the file; restore the file")
        return GGUFTensor(name=name, type=found, shape=shape, blocks=self._data[first : first + num_bytes])

    def _string(self) -> str:
        length = self._count(1)
        start = self._advance(length)
        try:
            return str(self._view[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise _Damage(start, f"text is not UTF-8 ({error.reason})") from None

    def _count(self, fewest_bytes: int) -> int:
        """A count of items of at least `fewest_bytes` each, which must fit into the rest of the file."""
        start = self._position
        count = int(self._scalar("Q"))
        if count * fewest_bytes > len(self._data) - self._position:
            raise _Damage(start, f"{count:,} items do not fit into the file")
        return count

    def _scalar(self, form: str) -> Any:
        start = self._advance(struct.calcsize(form))
        return struct.unpack_from(f"<{form}", self._view, start)[0]

    def _advance(self, num_bytes: int) -> int:
        start, stop = self._position, self._position + num_bytes
        if stop > len(self._data):
            raise _Damage(start, "the file ends")
        self._position = stop
        return start
