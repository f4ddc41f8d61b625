"""Padded lengths, so that the size of a ciphertext shows only its class.

Requests and whole responses have 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, and so on: each class is four times the one before.
Chunks of streams have 1 KiB, 4 KiB or 16 KiB, the largest chunk that every receiver of chunked OHTTP accepts.
"""

from __future__ import annotations

SMALLEST_MESSAGE = 4096
CHUNK_CLASSES = (1024, 4096, 16384)
LARGEST_CHUNK = CHUNK_CLASSES[-1]
_GROWTH = 4
_LENGTH_BYTES = 2  # of the length before a piece of content, for all classes


def padded_length(size: int) -> int:
    """Return the class of a message of `size` bytes."""
    padded = SMALLEST_MESSAGE
    while padded < size:
        padded *= _GROWTH
    return padded


def event_pieces(events: bytes) -> list[bytes]:
    """Return whole server-sent events in pieces of padded lengths. The padding is a comment, which readers skip."""
    largest = LARGEST_CHUNK - _LENGTH_BYTES
    pieces = [events[start : start + largest] for start in range(0, len(events), largest)] or [b""]
    last = pieces[-1]
    space = next(size for size in CHUNK_CLASSES if size - _LENGTH_BYTES >= len(last)) - _LENGTH_BYTES - len(last)
    comment = b"\n" if space == 1 else b":" + b" " * (space - 2) + b"\n"
    return [*pieces[:-1], last + (comment if space else b"")]
