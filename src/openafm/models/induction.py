"""A head start for copying, written into fresh weights.

A small model learns to copy from its context suddenly and late: first one head must find the previous token, then another
must find where the current one stood before, and nothing rewards the first before the second exists. Here the first heads
look at the previous token from the beginning, and every layer matches equal content; the architecture is untouched. With
these weights copying is learned within 0.4 M tokens, from plain ones it is not (docs/benchmarks.md). The second half follows
mimetic initialization (arXiv 2305.09828).

Shapes: D model dim, C head dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.models.attention import Attention
from openafm.models.config import RotaryConfig
from openafm.models.decoder import Decoder, Layer

QK_NORM_WEIGHT = 1.5  # attention may be sharper than the norm's unit weights allow
NUM_POSITION_LAYERS = 2
POSITION_SCALE = 2.0
NUM_FREQUENCIES = 4  # the fastest ones tell neighbors apart
CONTENT_SCALE = 0.5


@torch.no_grad()
def start_induction(model: Decoder, seed: int) -> None:
    """Rewrite fresh weights in place.

    All embedding rows get one direction in common, by which attention can address positions whatever the token; in a tied
    head it moves all logits alike. The first head of the first layers looks one position back along it. In every layer
    queries resemble keys and the output undoes the value projection, so that equal tokens find each other and are passed on.
    Where layers are spread over tracks, so is each track.

    Raises:
        ConfigError: an attention without keys of its own, rotary embedding or QK-norm in the first layers.
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
        _look_one_back(layer.attention, direction_D)
    for layer in layers:
        if isinstance(layer.attention, Attention):
            _match_content(layer.attention)


def _sharpen(attention: Attention) -> None:
    for norm in (attention.query_norm, attention.keys_values.key_norm if attention.keys_values else None):
        if norm is not None:
            norm.weight.fill_(QK_NORM_WEIGHT)


def _look_one_back(attention: object, direction_D: Tensor) -> None:
    if not isinstance(attention, Attention) or attention.keys_values is None or attention.position is None:
        raise ConfigError("the induction start needs rotary attention with keys of its own in the first layers")
    head_dim = attention.head_dim
    query_C = _fastest_channels(attention.position, head_dim)
    one = torch.ones(1, 1, dtype=torch.long)
    key_C = attention.position.build(one, head_dim).apply(query_C[None, None, None])[0, 0, 0]
    attention.query.weight[..., :head_dim, :] += POSITION_SCALE * torch.outer(query_C, direction_D)
    attention.keys_values.key.weight[..., :head_dim, :] += POSITION_SCALE * torch.outer(key_C, direction_D)


def _fastest_channels(position: object, head_dim: int) -> Tensor:
    """A unit vector on the first channel of each of the fastest pairs."""
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
