"""A bundle's weights in the kernels' layout: one cached file, memory-mapped and shared by all processes.

The file is written once from a verified bundle and is named by the bundle's signature. Its header lists the sections and a
CRC-32 of the data. Checking 900 MB takes as long as the rest of a start, so large files are checked when they are new or
changed (size, time or inode differ from the note beside the file) and once a week; files up to 64 MiB always. A file that
fails a check is written again. Imports no tensor library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle
from openafm.core.files import OutOfSpaceError, atomic_file
from openafm.core.native_build import cache_home, check_private, private_folder, waiting_lock
from openafm.runtime.engines.verified_files import verify_once
from openafm.runtime.native.layout import repacked, sections, stored_tensors
from openafm.runtime.native.update import packed_update

FORMAT = "openafm.native_weights"
ALIGNMENT = 64
MOST_FILES, MOST_BYTES = 16, 4 << 30  # limits of the cache; the least recently used files are deleted
ALWAYS_CHECKED_BYTES, RECHECK_S = 64 << 20, 7 * 86_400
HUGE_PAGE = 2 << 20
_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 4


class NativeWeights:
    """The sections of the file by name."""

    def __init__(self, data: NDArray[np.uint8], offsets: Mapping[str, int]) -> None:
        self._data, self._offsets = data, dict(offsets)

    def address(self, name: str) -> int:
        """Return the address of a section in memory, valid while this object lives."""
        return int(self._data.ctypes.data) + self._offsets[name]

    def copy(self) -> NativeWeights:
        """Return a copy in memory of this process that `write` can change."""
        data = _aligned_room(len(self._data))
        data[:] = self._data
        return NativeWeights(data, self._offsets)

    def write(self, name: str, packed: NDArray[np.uint8]) -> None:
        """Replace a section of a copy."""
        self._data[self._offsets[name] : self._offsets[name] + len(packed)] = packed


def open_weights(bundle: Bundle, library: ctypes.CDLL) -> NativeWeights:
    """Return the bundle's weights: those of another engine of this process, else from the cache, else repacked.

    The bundle is verified in each case, by `verify_once`: a changed copy must not be served from the cache of the original.

    Raises:
        BundleError: the weights cannot be read, do not fit the config or differ from the signed ones.
    """
    verify_once(bundle)
    path = weights_file(bundle, library)
    with _opening:
        weights = _opened.get(path)
        if weights is None:
            weights = _opened[path] = _from_cache(path, bundle, library)
    return weights


def rounded_weights(bundle: Bundle, library: ctypes.CDLL) -> NativeWeights:
    """Return the fp32 tensors of a bundle rounded to its numerics (`with_numerics`), in memory of this process.

    Raises:
        BundleError: the weights cannot be read or differ from the signed ones.
        WeightUpdateError: the weights do not fit the config.
        CompressionError: a matrix is not finite, or exceeds the scales.
    """
    header = _header(bundle)
    weights = NativeWeights(_aligned_room(header.num_bytes), header.offsets)
    for name, packed in packed_update(bundle, bundle.tensors(), library).items():
        weights.write(name, packed)
    return weights


def _reset_lock() -> None:
    global _opening
    _opening = threading.Lock()


def weights_file(bundle: Bundle, library: ctypes.CDLL) -> Path:
    """Return the path of the bundle's repacked weights, which may not exist yet."""
    return cache_home() / "weights" / f"{bundle.signature}-{library.oa_version()}.bin"


_opening = threading.Lock()
_opened: WeakValueDictionary[Path, NativeWeights] = WeakValueDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)  # another thread may have held it


def _from_cache(path: Path, bundle: Bundle, library: ctypes.CDLL) -> NativeWeights:
    header = _header(bundle)
    weights = _mapped(path, header)
    if weights is None:
        try:
            private_folder(path.parent)
            with waiting_lock(path.parent):
                weights = _mapped(path, header)  # another process may have written it
                if weights is None:
                    _write(path, header, bundle, library)
                    _remove_oldest(path)
                    weights = _mapped(path, header)
        except (OSError, OutOfSpaceError):  # the cache cannot be used
            weights = None
    return weights or _in_memory(header, bundle, library)


@dataclass(frozen=True, kw_only=True)
class _Header:
    """The expected start of the file up to the checksum of the data after `body`, and the offsets of its sections."""

    text: bytes
    body: int
    offsets: dict[str, int]
    num_bytes: int


def _header(bundle: Bundle) -> _Header:
    offsets: dict[str, int] = {}
    listed = sections(bundle)
    names = [[section.name, section.dtype, section.num_items] for section in listed]
    described = json.dumps({"format": FORMAT, "signature": bundle.signature, "sections": names}).encode()
    text = len(described).to_bytes(_LENGTH_BYTES, "little") + described
    at = body = _aligned(len(text) + _CHECKSUM_BYTES)
    for section in listed:
        offsets[section.name] = at
        at = _aligned(at + section.num_bytes)
    return _Header(text=text, body=body, offsets=offsets, num_bytes=at)


def _aligned(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT


def _mapped(path: Path, header: _Header) -> NativeWeights | None:
    """Return the file's weights if it exists and passes its checks, else None."""
    try:
        if path.stat().st_size != header.num_bytes:
            return None
        check_private(path.parent)
        check_private(path)
        data = _map(path)
    except (OSError, ValueError):
        return None
    if len(data) != header.num_bytes or data[: len(header.text)].tobytes() != header.text:
        return None
    if header.num_bytes <= ALWAYS_CHECKED_BYTES or not _is_checked(path):
        if data[len(header.text) :][:_CHECKSUM_BYTES].tobytes() != _bytes_of(zlib.crc32(data[header.body :].data)):
            return None
        with contextlib.suppress(OSError):
            _note(path)
    return NativeWeights(data, header.offsets)


def _map(path: Path) -> NDArray[np.uint8]:
    """Map a file, in huge pages where the system supports them for files: reads are up to a fifth faster."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not supported
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def _note_beside(path: Path) -> Path:
    return path.with_suffix(".checked")


def _state(path: Path) -> str:
    about = path.stat()
    return f"{about.st_size} {about.st_mtime_ns} {about.st_ino}"


def _note(path: Path) -> None:
    """Record that the file passed its check now."""
    with atomic_file(_note_beside(path), "w", permissions=0o600) as file:
        file.write(f"{_state(path)} {int(time.time())}")


def _is_checked(path: Path) -> bool:
    """Return True if the file passed its check within a week and is unchanged. The note's time is that of the last use."""
    note = _note_beside(path)
    try:
        state, _, checked = note.read_text(encoding="utf-8").rpartition(" ")
        if state != _state(path) or not 0 <= time.time() - int(checked) < RECHECK_S:
            return False
    except (OSError, ValueError):
        return False
    with contextlib.suppress(OSError):
        note.touch()
    return True


def _write(path: Path, header: _Header, bundle: Bundle, library: ctypes.CDLL) -> None:
    """Write the file, one section in memory at a time.

    Raises:
        BundleError: the weights cannot be read, do not fit the config or differ from the signed ones.
        OSError, OutOfSpaceError: the folder cannot be written.
    """
    bundle.check_tensors()  # the mapped bytes themselves, whatever was verified before
    with atomic_file(path, permissions=0o600) as file:
        waiting = bytearray(header.text.ljust(header.body, b"\0"))
        checksum = 0
        for packed in repacked(bundle, stored_tensors(bundle), library):
            for part in (packed.data, bytes(_aligned(len(packed)) - len(packed))):
                checksum = zlib.crc32(part, checksum)
                waiting += part
            # Whole huge pages are written at once, so that a system with huge pages for files uses them.
            whole = len(waiting) // HUGE_PAGE * HUGE_PAGE
            file.write(waiting[:whole])
            del waiting[:whole]
        file.write(waiting)
        file.seek(len(header.text))
        file.write(_bytes_of(checksum))
    _note(path)


def _bytes_of(checksum: int) -> bytes:
    return checksum.to_bytes(_CHECKSUM_BYTES, "little")


def _remove_oldest(newest: Path) -> None:
    """Delete the least recently used files beyond the limits. Mapped files stay usable. Needs the folder's lock."""
    for dead in newest.parent.glob(".*.bin.*"):  # of killed writers
        dead.unlink(missing_ok=True)
    files = sorted(newest.parent.glob("*.bin"), key=lambda path: (path == newest, _last_use(path)), reverse=True)
    total = 0
    for number, path in enumerate(files):
        total += path.stat().st_size
        if path != newest and (number >= MOST_FILES or total > MOST_BYTES):
            path.unlink(missing_ok=True)
            _note_beside(path).unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    note = _note_beside(path)
    return (note if note.exists() else path).stat().st_mtime


def _aligned_room(num_bytes: int) -> NDArray[np.uint8]:
    room = np.zeros(num_bytes + ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % ALIGNMENT :][:num_bytes]


def _in_memory(header: _Header, bundle: Bundle, library: ctypes.CDLL) -> NativeWeights:
    """Return weights repacked in memory, for this process only.

    Raises:
        BundleError: the weights cannot be read, do not fit the config or differ from the signed ones.
    """
    bundle.check_tensors()
    stored = stored_tensors(bundle)  # checked before memory of the claimed size is allocated
    data = _aligned_room(header.num_bytes)
    for offset, packed in zip(header.offsets.values(), repacked(bundle, stored, library), strict=True):
        data[offset : offset + len(packed)] = packed
    return NativeWeights(data, header.offsets)
