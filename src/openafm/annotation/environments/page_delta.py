"""Differences between two images of a SQLite database, page by page.

Chosen by measurement (`benchmarks/annotation_revert.py`): an image per turn (`Connection.serialize`) of a 10 MB database
takes 10 MB, its compressed changed pages take a few KB. Savepoints form one stack, so they can not keep branches, and
Python's sqlite3 has no changesets.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from openafm.core.errors import OpenAFMError

PAGE_BYTES = 4096
_HEADER = struct.Struct("<II")


class DamagedStateError(OpenAFMError):
    """A stored state cannot be read."""


def delta(before: bytes | bytearray, after: bytes | bytearray) -> bytes:
    """Return what turns one image into the other: numbers and contents of the changed pages, compressed."""
    old, new = _pages(before), _pages(after)
    shared = min(len(old), len(new))
    changed = np.flatnonzero((old[:shared].view(np.uint64) != new[:shared].view(np.uint64)).any(axis=1))
    indices = np.concatenate([changed, np.arange(shared, len(new))]).astype("<u4")
    packed = _HEADER.pack(len(new), len(indices)) + indices.tobytes() + new[indices].tobytes()
    return zlib.compress(packed, 1)


def apply_deltas(image: bytes | bytearray, deltas: Sequence[bytes]) -> bytearray:
    """Return the image after the deltas, in order.

    Raises:
        DamagedStateError: a delta is damaged or belongs to another image.
    """
    found = [_unpacked(each) for each in deltas]
    pages = bytearray(image)
    pages.extend(bytes(max([size - len(pages) for size, _, _ in found], default=0)))
    indices = np.frombuffer(b"".join(numbers for _, numbers, _ in found), "<u4")
    if indices.size and int(indices.max()) >= len(pages) // PAGE_BYTES:
        raise DamagedStateError("a stored state changes a page that it does not have; revert to an earlier step")
    # one assignment for all: the last of several contents of a page stays, and a page that comes again is in its delta
    _pages(pages)[indices] = _pages(b"".join(contents for _, _, contents in found))
    del pages[found[-1][0] if found else len(pages) :]
    return pages


def _unpacked(delta: bytes) -> tuple[int, bytes, bytes]:
    """Return the size of the image after a delta, and the numbers and contents of the changed pages."""
    try:
        packed = zlib.decompress(delta)
        num_pages, count = _HEADER.unpack_from(packed)
        start = _HEADER.size + 4 * count
        if len(packed) != start + count * PAGE_BYTES:
            raise ValueError("wrong length")
    except (zlib.error, struct.error, ValueError) as error:
        raise DamagedStateError(f"a stored state is damaged ({error}); revert to an earlier step") from error
    return num_pages * PAGE_BYTES, packed[_HEADER.size : start], packed[start:]


def _pages(image: bytes | bytearray) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    if len(image) % PAGE_BYTES:
        raise DamagedStateError(f"a database image has {len(image)} bytes, which is no multiple of {PAGE_BYTES}")
    return np.frombuffer(image, np.uint8).reshape(-1, PAGE_BYTES)
