"""A compressed bundle's weights in the order of the kernels: one file, mapped, shared by all processes that read it.

It is written once beside the user's other caches and bound to the bundle's signature. Imports no tensor library.

Shapes: R outputs, C inputs, V vocabulary, D model dim.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle, BundleError
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_file
from openafm.models.config import AttentionConfig, DecoderConfig, DenseFeedForwardConfig, OwnKeysValuesConfig
from openafm.runtime.native.build import cache_home, source_digest

FORMAT = "openafm.native_weights"
ALIGNMENT = 64
PANEL_ROWS, STEP_INPUTS, TILE_ROWS, GROUP = 64, 16, 16, 32
TILE_GROUP_BYTES = 4 * 64 + 2 * 32
_HEADER_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the file: name, dtype and number of items."""

    name: str
    dtype: str
    num_items: int

    @property
    def num_bytes(self) -> int:
        return self.num_items * np.dtype(self.dtype).itemsize


class NativeWeights:
    """The sections of the file by name."""

    def __init__(self, data: NDArray[np.uint8], offsets: Mapping[str, int]) -> None:
        self._data, self._offsets = data, dict(offsets)

    def address(self, name: str) -> int:
        """Where a section lies in memory, as long as this object lives."""
        return int(self._data.ctypes.data) + self._offsets[name]


def matrices(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Every 2-bit matrix by its name in a bundle, with its outputs and inputs."""
    shapes: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(config.layers):
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(feed_forward, DenseFeedForwardConfig)
        inner = attention.num_heads * attention.head_dim
        shapes[f"layers.{index}.attention.query"] = (inner, config.dim)
        if isinstance(attention.keys_values, OwnKeysValuesConfig):
            kv_dim = attention.keys_values.num_heads * attention.head_dim
            shapes[f"layers.{index}.attention.keys_values.key"] = (kv_dim, config.dim)
            shapes[f"layers.{index}.attention.keys_values.value"] = (kv_dim, config.dim)
        shapes[f"layers.{index}.attention.output"] = (config.dim, inner)
        for name in ("gate", "up"):
            shapes[f"layers.{index}.feed_forward.{name}"] = (feed_forward.hidden_dim, config.dim)
        shapes[f"layers.{index}.feed_forward.down"] = (config.dim, feed_forward.hidden_dim)
    return shapes


def norms(config: DecoderConfig) -> Iterator[tuple[str, int]]:
    """Every norm's weight by its name in a bundle, with its length."""
    for index, layer in enumerate(config.layers):
        attention = layer.attention
        yield f"layers.{index}.attention_norm.weight", config.dim
        yield f"layers.{index}.feed_forward_norm.weight", config.dim
        if isinstance(attention, AttentionConfig) and attention.qk_norm is not None:
            yield f"layers.{index}.attention.query_norm.weight", attention.head_dim
            if isinstance(attention.keys_values, OwnKeysValuesConfig):
                yield f"layers.{index}.attention.keys_values.key_norm.weight", attention.head_dim
    yield "norm.weight", config.dim


def sections(config: DecoderConfig) -> list[Section]:
    """All of the file, in its order: the stream of a decoded token."""
    listed = []
    for name, (num_outputs, num_inputs) in matrices(config).items():
        num_panels, num_steps = math.ceil(num_outputs / PANEL_ROWS), math.ceil(num_inputs / STEP_INPUTS)
        listed.append(Section(name=name, dtype="uint8", num_items=num_panels * num_steps * PANEL_ROWS * STEP_INPUTS // 4))
        listed.append(Section(name=f"{name}.scale", dtype="float32", num_items=num_panels * PANEL_ROWS))
    listed += [Section(name=name, dtype="float32", num_items=length) for name, length in norms(config)]
    num_tiles = math.ceil(config.vocab_size / TILE_ROWS)
    tile_bytes = config.dim // GROUP * TILE_GROUP_BYTES
    return [*listed, Section(name="embedding", dtype="uint8", num_items=num_tiles * tile_bytes)]


def open_weights(bundle: Bundle, library: ctypes.CDLL) -> NativeWeights:
    """The bundle's weights, from the cache where they lie there whole, else repacked and cached.

    Raises:
        BundleError: the weights cannot be read or do not fit the config.
    """
    header = _header(bundle)
    path = cache_home() / "weights" / f"{bundle.signature}-{source_digest()}.bin"
    found = _mapped(path, header)
    if found is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as file:
                file.truncate(header.num_bytes)
                file.flush()
                data = np.memmap(file.name, dtype=np.uint8, mode="r+")
                _fill(data, header, bundle, library)
                data.flush()
                data[: len(header.text)] = np.frombuffer(header.text, np.uint8)  # last: without it the file is none
                data.flush()
        except (OSError, OpenAFMError) as error:
            if isinstance(error, BundleError):
                raise
            return _in_memory(bundle, header, library)
        found = _mapped(path, header)
    return found or _in_memory(bundle, header, library)


@dataclass(frozen=True, kw_only=True)
class _Header:
    text: bytes
    offsets: dict[str, int]
    num_bytes: int


def _header(bundle: Bundle) -> _Header:
    offsets: dict[str, int] = {}
    listed = sections(bundle.config)
    names = json.dumps([[section.name, section.dtype, section.num_items] for section in listed])
    described = json.dumps({"format": FORMAT, "signature": bundle.signature, "sections": json.loads(names)}).encode()
    text = len(described).to_bytes(_HEADER_BYTES, "little") + described
    at = _aligned(len(text))
    for section in listed:
        offsets[section.name] = at
        at = _aligned(at + section.num_bytes)
    return _Header(text=text, offsets=offsets, num_bytes=at)


def _aligned(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT


def _mapped(path: Path, header: _Header) -> NativeWeights | None:
    """The file, if it is there and is what it must be."""
    try:
        if path.stat().st_size != header.num_bytes:
            return None
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (OSError, ValueError):
        return None
    return NativeWeights(data, header.offsets) if data[: len(header.text)].tobytes() == header.text else None


def _in_memory(bundle: Bundle, header: _Header, library: ctypes.CDLL) -> NativeWeights:
    """Where the cache cannot be written: repacked for this process alone."""
    room = np.zeros(header.num_bytes + ALIGNMENT, np.uint8)
    data = room[-room.ctypes.data % ALIGNMENT :][: header.num_bytes]
    _fill(data, header, bundle, library)
    return NativeWeights(data, header.offsets)


def _fill(data: NDArray[np.uint8], header: _Header, bundle: Bundle, library: ctypes.CDLL) -> None:
    tensors, config = bundle.tensors(), bundle.config
    base = data.ctypes.data
    for name, (num_outputs, num_inputs) in matrices(config).items():
        packed_RP = _tensor(bundle, tensors, f"{name}.weight", np.uint8, [(num_outputs, num_inputs // 4)])
        scale = _tensor(bundle, tensors, f"{name}.weight.scale", np.float32, [(), (num_outputs,)])
        library.oa_pack_panels(packed_RP.ctypes.data, num_outputs, num_inputs, base + header.offsets[name])
        at = header.offsets[f"{name}.scale"]
        data[at : at + 4 * num_outputs].view(np.float32)[:] = scale
    for name, length in norms(config):
        weight = _tensor(bundle, tensors, name, np.float32, [(length,)])
        data[header.offsets[name] :][: weight.nbytes].view(np.float32)[:] = weight
    vocab_size, dim = config.vocab_size, config.dim
    codes = _tensor(bundle, tensors, "embedding", np.uint8, [(vocab_size, dim // 2)])
    halves = [
        _tensor(bundle, tensors, f"embedding.{part}", np.float16, [(vocab_size, dim // GROUP)])
        for part in ("scale", "minimum")
    ]
    library.oa_pack_tiles(
        codes.ctypes.data, halves[0].ctypes.data, halves[1].ctypes.data, vocab_size, dim, base + header.offsets["embedding"]
    )


def _tensor(
    bundle: Bundle, tensors: Mapping[str, NDArray[Any]], name: str, dtype: type, shapes: list[tuple[int, ...]]
) -> NDArray[Any]:
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != dtype or tensor.shape not in shapes:
        found = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
        raise BundleError(
            f"{bundle.path}: the weights do not fit config.json: {name} is {found}, expected {np.dtype(dtype)} {shapes[0]}"
        )
    return np.ascontiguousarray(tensor)
