"""Sequence snapshots: a magic line, a tag of the rest, a JSON header and raw arrays. No pickle.

OPENAFM-SEQUENCE-2\\n | 32 bytes HMAC-SHA256 | 4 bytes little-endian header length | header | arrays, one after the other

The tag is made with the key of this user (`core/user_key.py`), or of this process if no key can be stored: keys and values
of somebody else are not continued from.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import OpenAFMError
from openafm.core.user_key import TAG_BYTES, tag, user_key
from openafm.runtime.engines.sequence import InsertedEmbeddings

_MAGIC = b"OPENAFM-SEQUENCE-2\n"
_START = len(_MAGIC) + TAG_BYTES
_PROCESS_KEY = secrets.token_bytes(32)
_INSERTED = "inserted"
_DTYPES = ("float32", "float16", "uint16", "int8", "uint8", "int32")


class SnapshotCorruptedError(OpenAFMError):
    """The bytes are not a complete sequence snapshot of this user."""


class SnapshotMismatchError(OpenAFMError):
    """The snapshot is of another model, kind of engine or format version."""


@dataclass(frozen=True, kw_only=True)
class SequenceSnapshot:
    """`length` tokens, their keys and values by name, and the signature of the engine that computed them."""

    signature: str
    length: int
    arrays: Mapping[str, NDArray[Any]]

    def check(self, signature: str, context_length: int) -> None:
        """Check that an engine with this signature and context can continue the sequence.

        Raises:
            SnapshotMismatchError: it cannot.
        """
        if self.signature != signature:
            raise SnapshotMismatchError(
                f"the snapshot was made by '{self.signature}', this is '{signature}'; prefill the tokens again"
            )
        if self.length > context_length:
            raise SnapshotMismatchError(
                f"the snapshot has {self.length} tokens, above this model's {context_length}; prefill fewer tokens"
            )

    def tokens(self, vocab_size: int) -> list[int]:
        """Return the token ids.

        Raises:
            KeyError, TypeError, ValueError: they are absent, not `length`, or outside of the vocabulary.
        """
        tokens: list[int] = self.arrays["tokens"].tolist()
        if len(tokens) != self.length:
            raise ValueError(f"{len(tokens)} tokens with keys and values of {self.length}")
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
            raise ValueError(f"tokens outside the vocabulary of {vocab_size}")
        return tokens


def write_snapshot(snapshot: SequenceSnapshot) -> bytes:
    """Return the bytes that `read_snapshot` reads."""
    return b"".join(snapshot_parts(snapshot))


def snapshot_parts(snapshot: SequenceSnapshot) -> list[bytes | memoryview]:
    """Return the parts of `write_snapshot` in order; arrays are not copied."""
    entries = [{"name": name, "dtype": str(array.dtype), "shape": array.shape} for name, array in snapshot.arrays.items()]
    header = json.dumps({"signature": snapshot.signature, "length": snapshot.length, "arrays": entries}).encode()
    parts: list[bytes | memoryview] = [struct.pack("<I", len(header)), header]
    parts += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in snapshot.arrays.values()]
    return [_MAGIC, tag(_key(), parts), *parts]


def read_snapshot(data: bytes | memoryview) -> SequenceSnapshot:
    """Return the snapshot that `write_snapshot` wrote; the arrays are read-only views of `data`.

    Raises:
        SnapshotCorruptedError: the bytes are damaged, truncated, of another user, or not a snapshot.
        SnapshotMismatchError: another version of the format.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        if bytes(data[: len(_MAGIC)]).startswith(b"OPENAFM-SEQUENCE-"):
            raise SnapshotMismatchError("the snapshot was written by another version of openafm; prefill the tokens again")
        raise SnapshotCorruptedError("not a sequence snapshot: bad magic bytes")
    body = memoryview(data)[_START:]
    if not hmac.compare_digest(tag(_key(), (body,)), data[len(_MAGIC) : _START]):
        raise SnapshotCorruptedError("the snapshot is damaged, truncated or of another user; prefill the tokens again")
    try:
        return _read_body(body)
    except (KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise SnapshotCorruptedError(f"the snapshot is invalid ({error}); prefill the tokens again") from error


def inserted_arrays(inserted: Iterable[InsertedEmbeddings]) -> dict[str, NDArray[np.float32]]:
    """Return inserted embeddings as arrays of a snapshot; `read_inserted` reads them back."""
    return {f"{_INSERTED}:{each.start}:{each.offset}:{each.digest}": each.vectors_LD for each in inserted}


def read_inserted(snapshot: SequenceSnapshot, weights_version: int) -> tuple[InsertedEmbeddings, ...]:
    """Return the inserted embeddings of a snapshot that an engine with weights of this version wrote.

    Raises:
        ValueError: they have another dtype or shape, or lie outside of the sequence.
    """
    found = []
    for name, vectors_LD in snapshot.arrays.items():
        if not name.startswith(f"{_INSERTED}:"):
            continue
        _, start, offset, digest = name.split(":", 3)
        each = InsertedEmbeddings(int(start), vectors_LD, digest, int(offset), weights_version)
        is_inside = 0 <= each.start < each.stop <= snapshot.length and each.offset >= 0
        if vectors_LD.dtype != np.float32 or vectors_LD.ndim != 2 or not is_inside:
            raise ValueError(f"embeddings {vectors_LD.dtype}{list(vectors_LD.shape)} at token {start}")
        found.append(each)
    return tuple(found)


def _read_body(body: memoryview) -> SequenceSnapshot:
    (header_length,) = struct.unpack_from("<I", body)
    header = json.loads(bytes(body[4 : 4 + header_length]))
    signature, length = header["signature"], header["length"]
    if not isinstance(signature, str) or not _is_count(length):
        raise ValueError(f"signature {signature!r}, length {length!r}")
    arrays: dict[str, NDArray[Any]] = {}
    start = 4 + header_length
    for entry in header["arrays"]:
        name, dtype, shape = entry["name"], entry["dtype"], entry["shape"]
        if not isinstance(name, str) or dtype not in _DTYPES or not all(map(_is_count, shape)):
            raise ValueError(f"array {name!r} of dtype {dtype!r} and shape {shape!r}")
        stop = start + math.prod(shape) * np.dtype(dtype).itemsize
        arrays[name] = np.frombuffer(body[start:stop], dtype).reshape(shape)
        start = stop
    if start != len(body):
        raise ValueError(f"arrays end at byte {start} of {len(body)}")
    return SequenceSnapshot(signature=signature, length=length, arrays=arrays)


def _key() -> bytes:
    return user_key() or _PROCESS_KEY


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
