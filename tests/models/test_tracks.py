"""Parallel tracks: identities of one track, of equal tracks and of tracks computed one by one.

Shapes: T tracks, B batch, S sequence, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_decoders import (
    DOCUMENTS,
    NUM_ROWS,
    ROW_LENGTH,
    decoder_config,
    largest_difference,
    layer,
    perturbed,
    random_tokens,
)
from torch import Tensor

from openafm.core.config import ConfigError, UnknownKeyError, from_dict, override, to_dict
from openafm.models.attention.context import PackedDocuments
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    TrackNormConfig,
    TracksConfig,
)
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.models.layers import RMSNorm
from openafm.models.sizes import named_size

TOLERANCE = 1e-5


def sparse(config: LayerConfig) -> LayerConfig:
    return replace(config, feed_forward=ExpertsConfig(num_experts=3, hidden_dim=24, router=TopKRouterConfig(soft_cap=2.0)))


def biased(config: LayerConfig) -> LayerConfig:
    assert isinstance(config.attention, AttentionConfig)
    return replace(
        config,
        attention=replace(config.attention, input_bias=True, output_bias=True),
        feed_forward=DenseFeedForwardConfig(hidden_dim=48, bias=True),
    )


# Windows, no position, biases, experts, and keys and values shared within a block and from the block before.
PLAIN = decoder_config(
    layer(window=4), sparse(layer(position=None)), biased(layer()), sparse(layer(source=2)), layer(source=1), layer(source=2)
)


def with_tracks(num_tracks: int = 3, block_depth: int = 2, **options: Any) -> DecoderConfig:
    return replace(PLAIN, tracks=TracksConfig(num_tracks=num_tracks, block_depth=block_depth, **options))


def decoder(config: DecoderConfig) -> Decoder:
    """Weights that differ in every track, biases and routers among them; logits of a few units."""
    model = perturbed(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "router" in name:
                parameter.normal_(std=0.1, generator=generator)
        model.embedding.mul_(0.4)
    return model


def one_track(model: Decoder, track: int) -> Decoder:
    """A decoder without tracks that has this track's layers and shares the rest."""
    state = {name: weight for name, weight in model.state_dict().items() if not name.startswith("tracks.")}
    plain = replace(model.config, tracks=None).build()
    plain.load_state_dict({name: w[track] if name.startswith("layers.") else w for name, w in state.items()})
    return plain


def packed() -> PackedDocuments:
    return PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH)


def looped(tracks: list[Decoder], config: TracksConfig, norms: list[list[RMSNorm]] | None) -> Tensor:
    """Logits of plain decoders, computed one after the other and combined after every block."""
    contexts = [packed() for _ in tracks]
    x_BSD = tracks[0].embed(random_tokens(NUM_ROWS, ROW_LENGTH))
    for block in range(len(tracks[0].layers) // config.block_depth):
        outputs = []
        for number, (track, context) in enumerate(zip(tracks, contexts, strict=True)):
            y_BSD = x_BSD
            for index in range(block * config.block_depth, (block + 1) * config.block_depth):
                y_BSD = track.layers[index](y_BSD, context)
            outputs.append(y_BSD if norms is None else norms[block][number](y_BSD))
        x_BSD = torch.stack(outputs).sum(0) / (len(tracks) if config.combine == "mean" else 1)
    return tracks[0].head(tracks[0].norm(x_BSD))


def track_norms(model: Decoder) -> list[list[RMSNorm]] | None:
    """A norm for every block and track, from the stacked ones."""
    if model.tracks is None or model.tracks.norms is None:
        return None
    norms: list[list[RMSNorm]] = []
    for stacked in model.tracks.norms:
        norms.append([RMSNorm(model.config.dim, eps=1e-5) for _ in stacked.weight])
        for norm, weight_D in zip(norms[-1], stacked.weight, strict=True):
            norm.weight.data.copy_(weight_D)
    return norms


@torch.no_grad()
@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("block_depth", [1, 2, 6])
def test_one_track_equals_the_plain_decoder(combine: str, block_depth: int) -> None:
    model = decoder(with_tracks(1, block_depth, combine=combine))
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    assert largest_difference(model(tokens_BS, packed()), one_track(model, 0)(tokens_BS, packed())) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("block_depth", [1, 2, 3])
def test_equal_tracks_under_mean_equal_the_plain_decoder(block_depth: int) -> None:
    model = decoder(with_tracks(3, block_depth))
    tokens_BS = random_tokens(2, 11)
    assert largest_difference(model(tokens_BS), one_track(model, 0)(tokens_BS)) > 1e-2
    for parameter in model.layers.parameters():
        parameter.copy_(parameter[:1].expand_as(parameter))
    assert largest_difference(model(tokens_BS), one_track(model, 0)(tokens_BS)) < TOLERANCE


WAYS_TO_COMBINE = [
    pytest.param({"combine": "mean"}, id="mean"),
    pytest.param({"combine": "sum"}, id="sum"),
    pytest.param({"combine": "mean", "norm": TrackNormConfig()}, id="mean of normalized"),
    pytest.param({"combine": "sum", "norm": TrackNormConfig()}, id="sum of normalized"),
]


@pytest.mark.parametrize("way", WAYS_TO_COMBINE)
@pytest.mark.parametrize("block_depth", [2, 3])
def test_all_tracks_at_once_equal_one_after_the_other_with_gradients(way: dict[str, Any], block_depth: int) -> None:
    model = decoder(with_tracks(3, block_depth, **way))
    assert model.config.tracks is not None
    tracks = [one_track(model, t) for t in range(3)]
    norms = track_norms(model)
    logits, expected = model(random_tokens(NUM_ROWS, ROW_LENGTH), packed()), looped(tracks, model.config.tracks, norms)
    assert largest_difference(logits, expected) < TOLERANCE
    logits.square().mean().backward()
    expected.square().mean().backward()
    for name, parameter in model.layers.named_parameters():
        of_tracks = torch.stack([track.layers.get_parameter(name).grad for track in tracks])
        assert of_tracks.any(), name
        assert close(parameter.grad, of_tracks), name
    if norms is not None:
        for stacked, apart in zip(model.tracks.norms, norms, strict=True):
            assert close(stacked.weight.grad, torch.stack([norm.weight.grad for norm in apart]))


def close(gradient: Tensor, expected: Tensor) -> bool:
    return largest_difference(gradient, expected) < 1e-4 * expected.abs().max().item()


@torch.no_grad()
def test_ways_to_combine_and_depths_are_different_models() -> None:
    tokens_BS = random_tokens(2, 11)
    configs = [with_tracks(block_depth=depth, **way.values[0]) for depth in (2, 3) for way in WAYS_TO_COMBINE]
    logits = [decoder(config)(tokens_BS) for config in configs]
    for index, one in enumerate(logits):
        assert all(largest_difference(one, other) > 1e-2 for other in logits[:index])


@torch.no_grad()
def test_a_track_sees_nothing_of_another_before_the_end_of_a_block() -> None:
    model = decoder(with_tracks(2, block_depth=6))
    state_of_first: list[Tensor] = []
    model.layers[5].register_forward_hook(lambda _module, _inputs, x_TBSD: state_of_first.append(x_TBSD[0].clone()))
    tokens_BS = random_tokens(1, 9)
    model(tokens_BS)
    for parameter in model.layers.parameters():
        parameter[1].mul_(-1)
    model(tokens_BS)
    assert torch.equal(*state_of_first)


def test_bf16_follows_fp32_and_weights_stay_fp32() -> None:
    model = decoder(with_tracks(norm=TrackNormConfig()))
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    exact = model(tokens_BS, packed())
    model.compute_dtype = torch.bfloat16
    rounded = model(tokens_BS, packed())
    assert rounded.dtype is torch.bfloat16
    assert (exact - rounded).norm() < 0.1 * exact.norm()
    rounded.float().logsumexp(-1).sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}


@torch.no_grad()
def test_every_track_starts_with_weights_of_its_own() -> None:
    model = with_tracks(norm=TrackNormConfig()).build(seed=3)
    again = with_tracks(norm=TrackNormConfig()).build(seed=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    for name, parameter in model.layers.named_parameters():
        assert len(parameter) == 3, name
        assert parameter.isfinite().all(), name
        if "norm" not in name and "bias" not in name:
            assert not torch.equal(parameter[0], parameter[1]), name
            assert parameter[0].std().item() == pytest.approx(parameter[1].std().item(), rel=0.3), name


def test_caches_count_the_heads_of_all_tracks() -> None:
    config = with_tracks(num_tracks=3)
    assert [config.kv_heads(index) for index in range(6)] == [6] * 6
    assert (config.num_tracks, PLAIN.num_tracks) == (3, 1)
    assert named_size("server.full").kv_heads(0) == 8 * 4


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: with_tracks(num_tracks=0), "num_tracks must be at least 1, got 0"),
        (lambda: with_tracks(block_depth=0), "block_depth must be at least 1, got 0"),
        (lambda: with_tracks(block_depth=4), "6 layers do not divide into track blocks of 4"),
        (lambda: TrackNormConfig(eps=0.0), "eps must be positive, got 0.0"),
        (lambda: override(with_tracks(), {"tracks.combine": "median"}), "tracks.combine"),
        (lambda: override(with_tracks(), {"tracks.num_tracks": "several"}), "tracks.num_tracks"),
    ],
)
def test_impossible_tracks_are_refused(build: Callable[[], object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build()


def test_json_keeps_tracks_and_names_a_misspelt_key() -> None:
    config = with_tracks(norm=TrackNormConfig(eps=1e-6))
    assert from_dict(DecoderConfig, to_dict(config)) == config
    values = to_dict(config)
    values["tracks"]["blok_depth"] = values["tracks"].pop("block_depth")
    with pytest.raises(UnknownKeyError, match="did you mean 'block_depth'"):
        from_dict(DecoderConfig, values)
