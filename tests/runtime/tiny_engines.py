"""Engines of tiny decoders, and their reference: one forward pass without a cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from native_bundles import compressed_bundle
from numpy.typing import NDArray

from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    PositionConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    TracksConfig,
    UntiedHeadConfig,
)
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.runtime.native.engine import NativeEngine

VOCAB_SIZE = 53
CONTEXT_LENGTH = 96
TOLERANCE = 1e-5

ROTARY = RotaryConfig(theta=100.0)


def layer(source: int | None = None, window: int | None = None, position: PositionConfig | None = ROTARY) -> LayerConfig:
    """Return a layer with its own keys and values, or with those of layer `source`."""
    return LayerConfig(
        attention=AttentionConfig(
            num_heads=4,
            head_dim=8,
            keys_values=OwnKeysValuesConfig(num_heads=2) if source is None else SharedKeysValuesConfig(layer=source),
            window=window,
            position=position,
        ),
        feed_forward=DenseFeedForwardConfig(hidden_dim=40),
    )


def with_experts(config: LayerConfig) -> LayerConfig:
    return replace(config, feed_forward=ExpertsConfig(num_experts=3, hidden_dim=16))


def config(*layers: LayerConfig, untied: bool = False) -> DecoderConfig:
    head = {"head": UntiedHeadConfig()} if untied else {}
    return DecoderConfig(vocab_size=VOCAB_SIZE, dim=32, layers=layers, context_length=CONTEXT_LENGTH, **head)


CONFIGS = {
    "shared": config(layer(), layer(), layer(source=1), layer(source=1)),
    "windows": config(layer(window=3), layer(position=None), layer(source=0, window=5), layer(source=1)),
    "nothing shared": config(layer(), layer(window=2), untied=True),
    "tracks": replace(
        config(layer(window=3), with_experts(layer(position=None)), layer(window=5), with_experts(layer(source=1))),
        tracks=TracksConfig(num_tracks=3, block_depth=2),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """An engine, and the expected logits after every token, [N, V]."""

    open: Callable[[], Engine]
    full_logits: Callable[[Sequence[int]], NDArray[np.float32]]


@functools.cache
def decoder(name: str) -> Decoder:
    """Return a decoder with norm weights other than 1 and attention that is not nearly uniform."""
    torch.set_num_threads(1)
    model = CONFIGS[name].build(seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5, generator=generator)
        model.embedding.normal_(std=0.1, generator=generator)
    return model


def engine(name: str = "shared") -> Engine:
    return TorchEngine(decoder(name), signature="tiny")


@torch.no_grad()
def full_logits(name: str, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return logits after every token, [N, V], without a cache."""
    return decoder(name)(torch.tensor([list(tokens)]))[0].numpy()


def native_engine() -> Engine:
    return NativeEngine(compressed_bundle(), num_threads=1)


def native_logits(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return logits of one step of a fresh sequence, which tests/runtime/native compares with other engines."""
    engine = native_engine()
    return engine.step([(engine.new_sequence(), list(tokens))], "all")[0]


# Every engine here runs all of tests/runtime/engines/test_engine_contract.py.
TINY = {
    f"torch, {name}": Tiny(open=functools.partial(engine, name), full_logits=functools.partial(full_logits, name))
    for name in CONFIGS
} | {"native": Tiny(open=native_engine, full_logits=native_logits)}
ONE_OF_EACH = ("torch, shared", "native")


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(VOCAB_SIZE, size=count).tolist()


def assert_close(a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype == np.float32
    assert np.abs(a - b).max() < TOLERANCE * max(1.0, np.abs(b).max())
