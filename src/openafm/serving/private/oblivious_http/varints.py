"""Variable-length integers (RFC 9000, section 16), and a reader of binary messages."""

from __future__ import annotations

from openafm.serving.private.errors import MessageError

_LARGEST = (1 << 62) - 1


def encode_varint(value: int) -> bytes:
    """Return the shortest encoding of 0..2^62 - 1."""
    for exponent in range(4):
        size = 1 << exponent
        if value < 1 << (8 * size - 2):
            return (value | exponent << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(f"{value} does not fit a variable-length integer; the largest is {_LARGEST}")


class IncompleteError(MessageError):
    """The message ends early; more bytes may complete it."""


class Reader:
    """Read a message from its start. Every read past the end raises `IncompleteError`."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size > len(self._data) - self.position:
            raise IncompleteError(f"the message ends after {len(self._data)} bytes, inside one of its parts")
        self.position += size
        return self._data[self.position - size : self.position]

    def integer(self, size: int) -> int:
        """Return an unsigned integer of `size` bytes."""
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        first = self.integer(1)
        rest = self.take((1 << (first >> 6)) - 1)
        return int.from_bytes(bytes((first & 0x3F,)) + rest, "big")

    def prefixed(self) -> bytes:
        """Return bytes whose length precedes them."""
        return self.take(self.varint())

    def rest(self) -> bytes:
        return self.take(len(self._data) - self.position)
