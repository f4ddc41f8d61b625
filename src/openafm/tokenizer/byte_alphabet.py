"""The byte alphabet of `tokenizer.json` files: tokens are written with one printable character for each byte."""

from __future__ import annotations

import functools


def bytes_of(token: str) -> bytes:
    """Return the bytes of a token written in the byte alphabet."""
    return bytes(map(_byte_of_character().__getitem__, token))


def characters_of(data: bytes) -> str:
    """Return `data` in the byte alphabet of `tokenizer.json` files: one printable character for each byte."""
    return "".join(map(characters().__getitem__, data))


@functools.cache
def characters() -> list[str]:
    """The character of each byte: itself if it is printable Latin-1, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


@functools.cache
def _byte_of_character() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(characters())}
