"""Tiny bundles with random weights, for the real engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openafm.adapters.config import LoRAConfig
from openafm.adapters.lora import adapter_weights, install
from openafm.adapters.package import AdapterPackage, write_adapter
from openafm.bundle import Bundle, RecoveryAdapter, write_bundle
from openafm.compression.config import QATConfig
from openafm.compression.deploy import packed_tensors
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.sizes import shared_kv_decoder
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for, windowed_encoder
from openafm.runtime.engines.base import Engine
from openafm.runtime.engines.torch_engine import TorchEngine
from openafm.tokenizer.bpe import TokenizerConfig, train_tokenizer
from openafm.tokenizer.chat_template import ChatTemplate

TEXT = 'the cat {"name":"Mo","age":3,"kind":["red","blue"]} and the dog sat on the mat, no: the log. '


def _decoder(config: DecoderConfig, seed: int) -> Decoder:
    """Return a decoder of random weights, with an embedding wide enough to distinguish tokens."""
    decoder = config.build(seed=seed)
    with torch.no_grad():
        decoder.embedding.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
    return decoder


def _shared_kv(context_length: int) -> DecoderConfig:
    return shared_kv_decoder(
        vocab_size=400,  # more than the tokenizer has; surplus rows must never be sampled
        dim=32,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        hidden_dim=48,
        context_length=context_length,
    )


def write_tiny_bundle(
    path: Path, seed: int = 0, context_length: int = 512, recovery: RecoveryAdapter | None = None
) -> Bundle:
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=360), [TEXT * 30])
    config = _shared_kv(context_length)
    decoder = _decoder(config, seed)
    tensors = {name: tensor.detach().numpy().astype(np.float32) for name, tensor in decoder.state_dict().items()}
    return write_bundle(
        path, config=config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors, recovery=recovery
    )


def _wide(vocab_size: int, context_length: int) -> DecoderConfig:
    """Return a decoder whose widths divide into groups of 32."""
    return shared_kv_decoder(
        vocab_size=vocab_size,
        dim=64,
        num_own_layers=2,
        num_shared_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        hidden_dim=96,
        context_length=context_length,
    )


def write_wide_bundle(path: Path, seed: int = 3, context_length: int = 512) -> Bundle:
    """Write a bundle in fp32 whose matrices can be rounded to groups of 32."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=360), [TEXT * 30])
    decoder = _decoder(_wide(tokenizer.vocab_size, context_length), seed)
    tensors = {name: tensor.detach().numpy() for name, tensor in decoder.state_dict().items()}
    return write_bundle(path, config=decoder.config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors)


def write_native_bundle(path: Path, seed: int = 3, context_length: int = 512) -> Bundle:
    """Write a 2-bit bundle for the native engine."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=360), [TEXT * 30])
    decoder = _decoder(_wide(tokenizer.vocab_size, context_length), seed)
    qat = QATConfig()
    qat.install(decoder)
    return write_bundle(
        path,
        config=decoder.config,
        tokenizer=tokenizer,
        template=ChatTemplate(),
        tensors=packed_tensors(decoder),
        numerics=qat.numerics,
    )


IMAGE_MODES = (
    ImageModeConfig(name="balanced", side=16, tokens=4),
    ImageModeConfig(name="high", side=16, tokens=4, grid=2),
    ImageModeConfig(name="rapid", side=8, tokens=1),
)


TINY_VISION = windowed_encoder(
    image_side=16, patch_side=2, window_side=4, dim=16, num_layers=2, num_heads=2, mlp_dim=24, num_global_layers=1
)


def write_multimodal_bundle(
    path: Path, modes: tuple[ImageModeConfig, ...] = IMAGE_MODES, vision: VisionConfig = TINY_VISION
) -> Bundle:
    """Write a bundle with a vision encoder of random weights, whose answers depend on the image."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=360), [TEXT * 30])
    config = MultimodalConfig.of(_shared_kv(512), vision, adapter_for(vision, 2), modes)
    decoder = _decoder(config, 0)
    with torch.no_grad():
        decoder.get_parameter("adapter.convolution.taps.weight").normal_(generator=torch.Generator().manual_seed(1))
    tensors = {name: tensor.detach().numpy().astype(np.float32) for name, tensor in decoder.state_dict().items()}
    return write_bundle(path, config=config, tokenizer=tokenizer, template=ChatTemplate(), tensors=tensors)


def write_random_adapter(path: Path, bundle: Bundle, seed: int = 0, name: str = "random") -> AdapterPackage:
    """Write an adapter that changes the outputs of a bundle."""
    decoder, lora = bundle.config.build(seed=0), LoRAConfig(rank=4)
    install(decoder, lora)
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(w.shape, generator=generator).numpy() for name, w in adapter_weights(decoder).items()}
    return write_adapter(path, weights=weights, config=lora, base_signature=bundle.signature, name=name)


def tiny_recovery() -> RecoveryAdapter:
    """Return an adapter for one matrix of each layer of the tiny model."""
    shapes = {"a": (2, 32), "b": (32, 2)}
    names = {f"layers.{layer}.attention.query.lora.{part}": shape for layer in range(3) for part, shape in shapes.items()}
    weights = {name: np.ones(shape, dtype=np.float32) for name, shape in names.items()}
    return RecoveryAdapter(config=LoRAConfig(rank=2, targets=("query",)), weights=weights)


class SlowEngine(TorchEngine):
    """Delay each step, so that tests can act during an answer, and count the steps."""

    num_steps = 0

    def forward(self, pieces: Sequence[Any]) -> Any:
        self.num_steps += 1
        time.sleep(0.02)
        return super().forward(pieces)


def computed_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of tokens of every later step of the engine."""
    counts: list[int] = []

    def counting(compute: Callable[..., Any]) -> Callable[..., Any]:
        def counted(batch: Sequence[tuple[Any, ...]], *rest: Any, **keywords: Any) -> Any:
            counts.append(sum(len(tokens) for _, tokens, *_ in batch))
            return compute(batch, *rest, **keywords)

        return counted

    for name in ("step", "begin"):
        if hasattr(engine, name):
            monkeypatch.setattr(engine, name, counting(getattr(engine, name)))
    return counts
