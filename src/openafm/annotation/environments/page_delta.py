"""Differences between two images of a SQLite database, page by page.

Chosen by measurement (`benchmarks/annotation_revert.py`): an image per turn (`Connection.serialize`) of a 10 MB database
takes 10 MB, its compressed changed pages take a few KB. Savepoints form one stack, so they can not keep branches, and
Python's sqlite3 has no changesets.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from openafm.core.errors import OpenAFMError

PAGE_BYTES = 4096
_HEADER = struct.Struct("<II")


class DamagedStateError(OpenAFMError):
    """A stored state cannot be read."""


def delta(before: bytes, after: bytes) -> bytes:
    """Return what turns one image into the other: numbers and contents of the changed pages, compressed."""
    old, new = _pages(before), _pages(after)
    shared = min(len(old), len(new))
    changed = np.flatnonzero((old[:shared].view(np.uint64) != new[:shared].view(np.uint64)).any(axis=1))
    indices = np.concatenate([changed, np.arange(shared, len(new))]).astype("<u4")
    packed = _HEADER.pack(len(new), len(indices)) + indices.tobytes() + new[indices].tobytes()
    return zlib.compress(packed, 1)


def apply_deltas(image: bytes, deltas: list[bytes]) -> bytes:
    """Return the image after the deltas, in order.

    Raises:
        DamagedStateError: a delta is damaged or belongs to another image.
    """
    pages = bytearray(image)
    for each in deltas:
        try:
            packed = zlib.decompress(each)
            num_pages, count = _HEADER.unpack_from(packed)
            start = _HEADER.size + 4 * count
            if len(packed) != start + count * PAGE_BYTES:
                raise ValueError("wrong length")
        except (zlib.error, struct.error, ValueError) as error:
            raise DamagedStateError(f"a stored state is damaged ({error}); revert to an earlier step") from error
        size = num_pages * PAGE_BYTES
        if size < len(pages):
            del pages[size:]
        pages.extend(bytes(size - len(pages)))
        for position, index in enumerate(np.frombuffer(packed, "<u4", count, _HEADER.size).tolist()):
            source = start + position * PAGE_BYTES
            pages[index * PAGE_BYTES : (index + 1) * PAGE_BYTES] = packed[source : source + PAGE_BYTES]
    return bytes(pages)


def _pages(image: bytes) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    if len(image) % PAGE_BYTES:
        raise DamagedStateError(f"a database image has {len(image)} bytes, which is no multiple of {PAGE_BYTES}")
    return np.frombuffer(image, np.uint8).reshape(-1, PAGE_BYTES)
