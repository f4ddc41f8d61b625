"""Weights of this project and of its peers, paired as views of equal shape, so that they copy both ways.

Shapes: H heads, C head dim, F = C / 2 frequencies, D model dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from openafm.bundle.hugging_face.weights import decoder_name
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
)
from openafm.models.decoder import Decoder

Pairs = Iterable[tuple[Tensor, Tensor]]

# A small decoder's figures, as the peers' configs name them.
VOCAB_SIZE, DIM, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN_DIM = 256, 64, 8, 4, 2, 16, 208
NUM_OWN_LAYERS = 5

TOLERANCE = 1e-5
POWER = 1e-2
"""Two models that differ in one rule are further apart than this; equal ones are within TOLERANCE."""


def layer(source: int | None = None, **attention: Any) -> LayerConfig:
    keys_values = OwnKeysValuesConfig(num_heads=NUM_KV_HEADS) if source is None else SharedKeysValuesConfig(layer=source)
    return LayerConfig(
        attention=AttentionConfig(num_heads=NUM_HEADS, head_dim=HEAD_DIM, keys_values=keys_values, **attention),
        feed_forward=DenseFeedForwardConfig(hidden_dim=HIDDEN_DIM),
    )


def decoder(layers: Iterable[LayerConfig]) -> Decoder:
    config = DecoderConfig(vocab_size=VOCAB_SIZE, dim=DIM, layers=tuple(layers))
    model = config.build().eval()
    perturb(model, seed=0)
    return model


def plain_layers(**attention: Any) -> list[LayerConfig]:
    return [layer(**attention)] * NUM_LAYERS


def sharing_layers(source: int = NUM_OWN_LAYERS - 1, **attention: Any) -> list[LayerConfig]:
    """Five layers with their own keys and values, then three that read those of layer `source`."""
    own, sharing = layer(**attention), layer(source=source, **attention)
    return [own] * NUM_OWN_LAYERS + [sharing] * (NUM_LAYERS - NUM_OWN_LAYERS)


@torch.no_grad()
def perturb(model: nn.Module, seed: int) -> None:
    """Random weights that give logits of a few units; norm weights differ from 1, so that a missing norm changes the
    logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.uniform_(0.5, 1.5, generator=generator)
        elif "embed" in name:
            parameter.normal_(std=0.12, generator=generator)
        else:
            parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)


@torch.no_grad()
def copy_to_peer(pairs: Pairs) -> None:
    for ours, theirs in pairs:
        theirs.copy_(ours)


@torch.no_grad()
def copy_to_ours(pairs: Pairs) -> None:
    for ours, theirs in pairs:
        ours.copy_(theirs)


def tokens(num_rows: int = 3, row_length: int = 24, seed: int = 0) -> Tensor:
    """Token ids from 3 on: the peers treat the first ones as padding, begin and end."""
    return torch.randint(3, VOCAB_SIZE, (num_rows, row_length), generator=torch.Generator().manual_seed(seed))


def largest_difference(a: Tensor, b: Tensor) -> float:
    assert a.abs().max() > 1, "logits near zero would agree whatever the models do"
    return (a - b).abs().max().item()


def transformers_pairs(ours: Decoder, theirs: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs for Qwen3, its mixture of experts and SmolLM3 under the names of `openafm import`, in the half
    layout. Weights that sharing layers lack are unchanged."""
    weights = dict(ours.named_parameters())
    for their_name, weight in theirs.named_parameters():
        if ".mlp.experts." in their_name or ".mlp.gate." in their_name:
            yield from _expert_pairs(weights, their_name, weight)
            continue
        name = decoder_name(their_name)
        assert name is not None, their_name
        if name not in weights:
            continue
        rotates = any(part in name for part in (".query.", ".key.", ".query_norm.", ".key_norm."))
        yield _channels(weights[name], weight, rotates and _is_interleaved(ours, name))


def _expert_pairs(weights: dict[str, Tensor], their_name: str, theirs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """One weight of a sparse feed-forward; the peer stores gate and up of an expert in one matrix."""
    feed_forward = f"layers.{their_name.split('.')[2]}.feed_forward"
    if their_name.endswith("gate_up_proj"):
        gate, up = theirs.chunk(2, dim=1)
        yield weights[f"{feed_forward}.gate"], gate
        yield weights[f"{feed_forward}.up"], up
    else:
        name = "down" if their_name.endswith("down_proj") else "router.weight"
        yield weights[f"{feed_forward}.{name}"], theirs


def _is_interleaved(ours: Decoder, name: str) -> bool:
    config = ours.config.layers[int(name.split(".")[1])].attention
    assert isinstance(config, AttentionConfig)
    return isinstance(config.position, RotaryConfig) and config.position.layout == "interleaved"


def _channels(ours: Tensor, theirs: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Rows of heads [H * C, ...] in our layout and in the half layout, matched channel by channel."""
    if not interleaved:
        return ours, theirs
    num_frequencies = HEAD_DIM // 2
    ours_HF2D = ours.unflatten(0, (-1, num_frequencies, 2))
    theirs_HF2D = theirs.unflatten(0, (-1, 2, num_frequencies)).transpose(1, 2)
    return ours_HF2D, theirs_HF2D


def tamm_pairs(ours: Decoder, theirs: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs for AFMTextV7, whose channels rotate interleaved as ours and whose q, k and v are one matrix."""
    peer: Any = theirs
    yield ours.embedding, peer.embedding.weight
    yield ours.norm.weight, peer.output_norm.weight
    blocks = [block for segment in peer.layers.children() for block in segment.children()]
    for a, b in zip(ours.layers, blocks, strict=True):
        yield a.attention_norm.weight, b.attention.norm.weight
        yield a.attention.output.weight, b.attention.output_transform.weight
        yield a.feed_forward_norm.weight, b.feed_forward.norm.weight
        yield a.feed_forward.gate.weight, b.feed_forward.hidden_transform.linear_0.weight
        yield a.feed_forward.up.weight, b.feed_forward.hidden_transform.linear_1.weight
        yield a.feed_forward.down.weight, b.feed_forward.output_transform.weight
        keys_values = a.attention.keys_values
        if keys_values is None:
            yield a.attention.query.weight, b.attention.q_transform.weight
            yield a.attention.query_norm.weight, b.attention.q_norm.query_norm.weight
            continue
        sizes = [NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM]
        query, key, value = b.attention.qkv_transform.fused_linear.weight.split(sizes)
        yield a.attention.query.weight, query
        yield keys_values.key.weight, key
        yield keys_values.value.weight, value
        yield a.attention.query_norm.weight, b.attention.qk_norm.query_norm.weight
        yield keys_values.key_norm.weight, b.attention.qk_norm.key_norm.weight
