"""Bundles of random weights at the shapes of open models."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from synthetic import synthetic_tokenizer

from openafm.bundle import Bundle, open_bundle, write_bundle
from openafm.compression.grouped import FORMATS
from openafm.compression.numerics import Numerics
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
)
from openafm.runtime.native.shapes import matrices, vectors
from openafm.tokenizer.chat_template import ChatTemplate

SHAPES = {  # layers, dim, heads, hidden dim; 8 key/value heads of 128 and a vocabulary of 151,936
    "0.6B": (28, 1024, 16, 3072),
    "1.7B": (28, 2048, 16, 6144),
    "4B": (36, 2560, 32, 9728),
}
INT4 = Numerics(weights="int4_group64", embedding="int4_group32", activations="int8_per_token", kv="int8_per_token_head")
INT8 = Numerics(weights="int8_group128", embedding="int8_group128", activations="int8_per_token", kv="int8_per_token_head")


def config_of(shape: str) -> DecoderConfig:
    num_layers, dim, num_heads, hidden_dim = SHAPES[shape]
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            head_dim=128,
            keys_values=OwnKeysValuesConfig(num_heads=8),
            position=RotaryConfig(theta=1e6, layout="half"),
            qk_norm=None,
        ),
        feed_forward=DenseFeedForwardConfig(hidden_dim=hidden_dim),
    )
    return DecoderConfig(vocab_size=151_936, dim=dim, layers=(layer,) * num_layers, norm_eps=1e-6, context_length=32_768)


def random_bundle(folder: Path, shape: str, numerics: Numerics) -> Bundle:
    """Return the bundle of random weights in `folder`; write it if absent."""
    path = folder / f"open_{shape}_{numerics.weights}_1"
    if (path / "signature.json").is_file():
        return open_bundle(path)
    config = config_of(shape)
    return write_bundle(
        path,
        config=config,
        tokenizer=synthetic_tokenizer(),
        template=ChatTemplate(),
        tensors=_random_tensors(config, numerics),
        numerics=numerics,
        card="# Random weights of an open model's shape\n\nFor measurements of speed and memory only.\n",
    )


def _random_tensors(config: DecoderConfig, numerics: Numerics) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(0)
    tensors: dict[str, NDArray[Any]] = {name: np.ones(length, np.float32) for name, length in vectors(config).items()}
    for name, shape in {**{f"{name}.weight": shape for name, shape in matrices(config).items()}}.items():
        share = 1 / sqrt(2 * len(config.layers)) if ".output." in name or ".down." in name else 1.0
        tensors |= _random_matrix(generator, name, shape, numerics.weights, share / sqrt(shape[1]))
    return tensors | _random_matrix(generator, "embedding", (config.vocab_size, config.dim), numerics.embedding, 0.05)


def _random_matrix(
    generator: np.random.Generator, name: str, shape: tuple[int, int], weights: str, std: float
) -> dict[str, NDArray[Any]]:
    format = FORMATS[weights]
    scale = std / (4.6 if format.bits == 4 else 73)
    made: dict[str, NDArray[Any]] = {}
    for suffix, (dtype, wanted) in format.shapes(*shape).items():
        if suffix:
            made[name + suffix] = np.full(wanted, scale if suffix == ".scale" else -7.5 * scale, dtype)
            continue
        codes = np.frombuffer(generator.bytes(wanted[0] * wanted[1]), dtype).reshape(wanted)
        made[name] = np.maximum(codes, -127) if format.bits == 8 else codes
    return made
