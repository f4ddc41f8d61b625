"""GGUF files of random weights, for the speed of llama.cpp on a shape: nothing is trained or converted.

The llama architecture without a vocabulary, a tied head, and a body of one type. Blocks hold random codes of the type,
with scales that keep the states finite. All layers have the same bytes, each at its own offset: speed does not depend
on the values, and a file of gigabytes is written in seconds.

Layout: "GGUF", version, counts, typed keys and values, tensor entries, then the tensors, each at a multiple of 32 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openafm.core.files import atomic_file
from openafm.models.config import DecoderConfig

ALIGNMENT, VERSION = 32, 3
_UINT32, _FLOAT32, _STRING = 4, 6, 8  # types of values
_TRITS = np.array([byte for byte in range(256) if all(byte >> shift & 3 != 3 for shift in (0, 2, 4, 6))], np.uint8)
Blocks = Callable[[np.random.Generator, int, float], NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """A type of llama.cpp: its number in the file, weights and bytes of a block, and how random blocks are drawn.

    `blocks(generator, count, std)` gives [count, bytes]; `std` is that of the weights.
    """

    number: int
    num_weights: int
    num_bytes: int
    blocks: Blocks


def _halves(value: float, count: int) -> NDArray[np.uint8]:
    return np.full((count, 1), value, np.float16).view(np.uint8)


def _random(generator: np.random.Generator, count: int, num_bytes: int) -> NDArray[np.uint8]:
    return np.frombuffer(generator.bytes(count * num_bytes), np.uint8).reshape(count, num_bytes)


def _f32(generator: np.random.Generator, count: int, std: float) -> NDArray[np.uint8]:
    return np.full((count, 1), 1.0, np.float32).view(np.uint8)  # norms


def _bf16(generator: np.random.Generator, count: int, std: float) -> NDArray[np.uint8]:
    drawn = generator.standard_normal(min(count, 1 << 20), np.float32) * np.float32(std)
    return np.resize((drawn.view(np.uint32) >> 16).astype(np.uint16), count)[:, None].view(np.uint8)


def _tq2_0(generator: np.random.Generator, count: int, std: float) -> NDArray[np.uint8]:
    """-1, 0 or 1, two bits each, and the scale of 256."""
    codes = _TRITS[generator.integers(len(_TRITS), size=(count, 64), dtype=np.uint8)]
    return np.concatenate([codes, _halves(std / sqrt(2 / 3), count)], axis=1)


def _iq2_xxs(generator: np.random.Generator, count: int, std: float) -> NDArray[np.uint8]:
    """The scale of 256; then for each 32 four points of a lattice, their signs and a finer scale."""
    # Coordinates of a point are 8, 25 or 43; a finer scale is (1 / 2 + 0 ... 15) / 4.
    return np.concatenate([_halves(std / 35, count), _random(generator, count, 64)], axis=1)


def _q4_0(generator: np.random.Generator, count: int, std: float) -> NDArray[np.uint8]:
    """The scale of 32; codes of 4 bits around 8."""
    return np.concatenate([_halves(std / 4.6, count), _random(generator, count, 16)], axis=1)


def _q8_0(generator: np.random.Generator, count: int, std: float) -> NDArray[np.uint8]:
    """The scale of 32; signed codes of 8 bits."""
    return np.concatenate([_halves(std / 74, count), _random(generator, count, 32)], axis=1)


def _q4_k(generator: np.random.Generator, count: int, std: float) -> NDArray[np.uint8]:
    """Scales of scales and of minima; for each 32 a scale and a minimum of 6 bits; codes of 4 bits."""
    scale = std / 4.6 / 32
    parts = [_halves(scale, count), _halves(7.5 * scale, count), np.full((count, 12), 0x20, np.uint8)]
    return np.concatenate([*parts, _random(generator, count, 128)], axis=1)


TYPES = {
    "F32": TensorType(number=0, num_weights=1, num_bytes=4, blocks=_f32),
    "Q4_0": TensorType(number=2, num_weights=32, num_bytes=18, blocks=_q4_0),
    "Q8_0": TensorType(number=8, num_weights=32, num_bytes=34, blocks=_q8_0),
    "Q4_K": TensorType(number=12, num_weights=256, num_bytes=144, blocks=_q4_k),
    "IQ2_XXS": TensorType(number=16, num_weights=256, num_bytes=66, blocks=_iq2_xxs),
    "BF16": TensorType(number=30, num_weights=1, num_bytes=2, blocks=_bf16),
    "TQ2_0": TensorType(number=35, num_weights=256, num_bytes=66, blocks=_tq2_0),
}


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    name: str
    type: TensorType
    shape: tuple[int, ...]  # inputs first
    std: float

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape)) // self.type.num_weights * self.type.num_bytes


def write_gguf(path: Path, config: DecoderConfig, body: str) -> Path:
    """Write a model of this shape with matrices of the type `body`, unless the file exists. Return `path`.

    The embedding, which is also the head, is Q4_K if the body has few bits, else of the body's type (BF16, Q8_0). KV
    sharing has no counterpart: every layer has its own keys and values.
    """
    if path.exists():
        return path
    tensors = list(_tensors(config, TYPES[body], TYPES[body if body in ("BF16", "Q8_0") else "Q4_K"]))
    generator = np.random.default_rng(0)
    kept: dict[tuple[TensorType, tuple[int, ...], float], NDArray[np.uint8]] = {}
    with atomic_file(path) as file:
        header = _header(config, tensors)
        file.write(header.ljust(_aligned(len(header)), b"\0"))
        for tensor in tensors:
            key = (tensor.type, tensor.shape, tensor.std)
            if key not in kept:
                count = int(np.prod(tensor.shape)) // tensor.type.num_weights
                kept[key] = tensor.type.blocks(generator, count, tensor.std)
            file.write(np.ascontiguousarray(kept[key]).data)
            file.write(b"\0" * (_aligned(tensor.num_bytes) - tensor.num_bytes))
    return path


def _tensors(config: DecoderConfig, body: TensorType, embedding: TensorType) -> Iterator[_Tensor]:
    attention, hidden_dim = config.layers[0].attention, config.layers[0].feed_forward.hidden_dim
    dim, inner, kv_dim = config.dim, attention.num_heads * attention.head_dim, config.kv_heads(0) * attention.head_dim
    added = 1 / sqrt(2 * len(config.layers))
    yield _Tensor(name="token_embd.weight", type=embedding, shape=(dim, config.vocab_size), std=0.05)
    yield _Tensor(name="output_norm.weight", type=TYPES["F32"], shape=(dim,), std=1)
    for layer in range(len(config.layers)):
        for name in ("attn_norm", "ffn_norm"):
            yield _Tensor(name=f"blk.{layer}.{name}.weight", type=TYPES["F32"], shape=(dim,), std=1)
        for name, num_outputs, num_inputs, share in (
            ("attn_q", inner, dim, 1.0),
            ("attn_k", kv_dim, dim, 1.0),
            ("attn_v", kv_dim, dim, 1.0),
            ("attn_output", dim, inner, added),
            ("ffn_gate", hidden_dim, dim, 1.0),
            ("ffn_up", hidden_dim, dim, 1.0),
            ("ffn_down", dim, hidden_dim, added),
        ):
            shape, std = (num_inputs, num_outputs), share / sqrt(num_inputs)
            yield _Tensor(name=f"blk.{layer}.{name}.weight", type=body, shape=shape, std=std)


def _header(config: DecoderConfig, tensors: list[_Tensor]) -> bytes:
    attention = config.layers[0].attention
    values: dict[str, str | int | float] = {
        "general.architecture": "llama",
        "llama.context_length": config.context_length,
        "llama.embedding_length": config.dim,
        "llama.block_count": len(config.layers),
        "llama.feed_forward_length": config.layers[0].feed_forward.hidden_dim,
        "llama.attention.head_count": attention.num_heads,
        "llama.attention.head_count_kv": config.kv_heads(0),
        "llama.attention.key_length": attention.head_dim,
        "llama.attention.value_length": attention.head_dim,
        "llama.rope.dimension_count": attention.head_dim,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "llama.rope.freq_base": 10_000.0,
        "llama.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "no_vocab",
    }
    text = b"GGUF" + struct.pack("<IQQ", VERSION, len(tensors), len(values))
    text += b"".join(_string(key) + _value(value) for key, value in values.items())
    offset = 0
    for tensor in tensors:
        text += _string(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        text += struct.pack("<IQ", tensor.type.number, offset)
        offset += _aligned(tensor.num_bytes)
    return text


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<II", _UINT32, value) if isinstance(value, int) else struct.pack("<If", _FLOAT32, value)


def _aligned(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT
