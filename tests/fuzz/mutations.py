"""Mutations of files: bytes, JSON values, and the header of safetensors files."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]

STRANGE_NUMBERS = (0, -1, 1, 2**31, 2**32, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"))
STRANGE_STRINGS = ("", "\0", "\ud800", "../../x", "/dev/zero", "x" * 3000, "é\u202e", "NaN", "float64", "I64", "\n")
STRANGE_VALUES: tuple[Any, ...] = (None, True, [], {}, [[]], {"": None}, *STRANGE_NUMBERS, *STRANGE_STRINGS)


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    block = bytes(rng.choice((0, 255, rng.randrange(256))) for _ in range(rng.choice((1, 4, 8, 40))))
    return data[:start] + block + data[start + len(block) :]


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def insert(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.choice((1, 2, 16, 300))) + data[start:]


def remove(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 16, 300)) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    start, stop = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:stop] + data[start:stop] + data[stop:]


def replace_all(data: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", rng.randbytes(200)))


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Change one to three values, keys or items of a JSON document; other data is changed by bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return flip_bits(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _with_change(value, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", rng.choice(("surrogatepass", "replace")))


def mutate_safetensors_header(data: bytes, rng: random.Random) -> bytes:
    """Change the length or the JSON of the header of a safetensors file; other data is changed by bytes."""
    if len(data) < 10 or data[8:9] != b"{":
        return mutate_json(data, rng)
    (length,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.3:
        return struct.pack("<Q", rng.choice((0, 1, length - 1, length + 8, 2**32, 2**63, 2**64 - 1))) + header + body
    changed = mutate_json(header.rstrip(), rng)
    return struct.pack("<Q", len(changed)) + changed + body


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    overwrite,
    truncate,
    insert,
    remove,
    repeat,
    replace_all,
    *(mutate_json,) * 5,
    *(mutate_safetensors_header,) * 3,
)


def mutate(data: bytes, rng: random.Random) -> bytes:
    return rng.choice(MUTATIONS)(data, rng)


def _with_change(value: Any, rng: random.Random) -> Any:
    """Return the value with one change at a random place in it."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return _with_changed_entry(value, key, rng)
    if isinstance(value, list) and value and rng.random() < 0.9:
        index = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.1:
            return value[:index] + value[index + 1 :]
        if kind < 0.2:
            return [*value[:index], value[index], *value[index:]]
        return [*value[:index], _with_change(value[index], rng), *value[index + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 8, -8, 1000))
    if isinstance(value, str) and value and rng.random() < 0.5:
        return flip_bits(value.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")
    return rng.choice(STRANGE_VALUES)


def _with_changed_entry(value: dict[str, Any], key: str, rng: random.Random) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.1:
        return {each: below for each, below in value.items() if each != key}
    if kind < 0.2:
        return value | {rng.choice(STRANGE_STRINGS): rng.choice(STRANGE_VALUES)}
    if kind < 0.3:
        return {(key + "x" if each == key else each): below for each, below in value.items()}
    return value | {key: _with_change(value[key], rng)}
