"""Initial weights with induction heads, which copy from the context.

A small model learns to copy late and suddenly: one head must attend to the previous token and a second one to earlier
occurrences of the current token, and the first gives no gain in loss without the second. This initialization makes the first
heads attend to the previous token and all layers match equal content; the architecture is unchanged. The model then learns
to copy within 0.4 M tokens; from plain weights it does not (docs/benchmarks.md). The content match follows mimetic
initialization (arXiv 2305.09828).

Shapes: D model dim, C head dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.models.attention.grouped_query import Attention
from openafm.models.config import RotaryConfig
from openafm.models.decoder import Decoder, Layer

QK_NORM_WEIGHT = 1.5  # sharper attention than with unit weights
NUM_POSITION_LAYERS = 2
POSITION_SCALE = 2.0
NUM_FREQUENCIES = 4  # the highest ones, which distinguish neighboring positions
CONTENT_SCALE = 0.5


@torch.no_grad()
def start_induction(model: Decoder, seed: int) -> None:
    """Change initial weights in place.

    All embedding rows get one common direction, by which attention addresses positions independently of the token; in a tied
    head it shifts all logits equally. The first head of the first layers attends one position back along this direction. In
    every layer the query projection approximates the key projection, and the output projection the inverse of the value
    projection, so that equal tokens attend to each other and are copied. All tracks are changed alike.

    Raises:
        ConfigError: one of the first layers has no own keys or no rotary embedding.
    """
    generator = torch.Generator().manual_seed(seed)
    dim = model.config.dim
    direction_D = torch.nn.functional.normalize(torch.randn(dim, generator=generator), dim=0)
    model.embedding.add_(model.embedding.norm(dim=-1).mean() * direction_D)
    layers = list(cast("Iterable[Layer]", model.layers))
    for layer in layers:
        if isinstance(layer.attention, Attention):
            _sharpen(layer.attention)
    for layer in layers[:NUM_POSITION_LAYERS]:
        _attend_to_previous(layer.attention, direction_D)
    for layer in layers:
        if isinstance(layer.attention, Attention):
            _match_content(layer.attention)


def _sharpen(attention: Attention) -> None:
    for norm in (attention.query_norm, attention.keys_values.key_norm if attention.keys_values else None):
        if norm is not None:
            norm.weight.fill_(QK_NORM_WEIGHT)


def _attend_to_previous(attention: object, direction_D: Tensor) -> None:
    if not isinstance(attention, Attention) or attention.keys_values is None or attention.position is None:
        raise ConfigError("the induction start needs rotary attention with own keys and values in the first layers")
    head_dim = attention.head_dim
    query_C = _high_frequency_channels(attention.position, head_dim)
    one = torch.ones(1, 1, dtype=torch.long)
    key_C = attention.position.build(one, head_dim).apply(query_C[None, None, None])[0, 0, 0]
    attention.query.weight[..., :head_dim, :] += POSITION_SCALE * torch.outer(query_C, direction_D)
    attention.keys_values.key.weight[..., :head_dim, :] += POSITION_SCALE * torch.outer(key_C, direction_D)


def _high_frequency_channels(position: object, head_dim: int) -> Tensor:
    """Return a unit vector on the first channel of each of the pairs with the highest frequencies."""
    if not isinstance(position, RotaryConfig):
        raise ConfigError(f"the induction start needs RotaryConfig in the first layers, not {type(position).__name__}")
    stride = 2 if position.layout == "interleaved" else 1
    channels_C = torch.zeros(head_dim)
    channels_C[0 : stride * NUM_FREQUENCIES : stride] = NUM_FREQUENCIES**-0.5
    return channels_C


def _match_content(attention: Attention) -> None:
    keys_values = attention.keys_values
    if keys_values is None:
        return
    group = attention.num_heads // keys_values.num_kv_heads
    for head in range(attention.num_heads):
        own, shared = _rows(head, attention.head_dim), _rows(head // group, attention.head_dim)
        attention.query.weight[..., own, :] += CONTENT_SCALE * keys_values.key.weight[..., shared, :]
        attention.output.weight[..., own] += CONTENT_SCALE * keys_values.value.weight[..., shared, :].mT


def _rows(head: int, head_dim: int) -> slice:
    return slice(head * head_dim, (head + 1) * head_dim)
