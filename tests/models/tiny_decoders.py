"""Decoders of a few thousand parameters, with weights so far from their defaults that tests detect a wrong one."""

from __future__ import annotations

import torch
from torch import Tensor

from openafm.models.attention.context import Span
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    PositionConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
)
from openafm.models.decoder import Decoder

VOCAB_SIZE = 61

DOCUMENTS = (
    Span(row=0, start=0, stop=5),
    Span(row=0, start=5, stop=6),
    Span(row=0, start=6, stop=14),  # then two positions of padding
    Span(row=1, start=0, stop=16),
    Span(row=2, start=3, stop=12),  # padding on both sides
)
NUM_ROWS, ROW_LENGTH = 3, 16

ROTARY = RotaryConfig(theta=100.0)


def layer(source: int | None = None, window: int | None = None, position: PositionConfig | None = ROTARY) -> LayerConfig:
    """A layer with its own keys and values, or those of layer `source`."""
    return LayerConfig(
        attention=AttentionConfig(
            num_heads=4,
            head_dim=8,
            keys_values=OwnKeysValuesConfig(num_heads=2) if source is None else SharedKeysValuesConfig(layer=source),
            window=window,
            position=position,
        ),
        feed_forward=DenseFeedForwardConfig(hidden_dim=48),
    )


def decoder_config(*layers: LayerConfig) -> DecoderConfig:
    return DecoderConfig(vocab_size=VOCAB_SIZE, dim=32, layers=layers, context_length=64)


def perturbed(config: DecoderConfig, seed: int = 0) -> Decoder:
    """A decoder whose norm weights are not 1 and whose attention is not nearly uniform."""
    torch.set_num_threads(1)
    model = config.build(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0, generator=generator)
            else:
                parameter.mul_(1.5)
        model.embedding.normal_(std=0.3, generator=generator)
    return model


def random_tokens(num_rows: int, row_length: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB_SIZE, (num_rows, row_length), generator=torch.Generator().manual_seed(seed))


def largest_difference(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
