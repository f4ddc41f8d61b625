"""Adapters on models with parallel tracks: a pair of matrices for every track."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_adapters import perturb_adapter, random_tokens, tiny_config

from openafm.adapters.config import LoRAConfig, SingularValueStart, num_adapter_parameters
from openafm.adapters.lora import (
    adapter_weights,
    install,
    installed,
    load_adapter_weights,
    load_smaller_adapter,
    remove,
    start_at_zero,
)
from openafm.adapters.singular import adapter_bits_per_weight
from openafm.models.config import DecoderConfig, TracksConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts_config import ExpertsConfig

NUM_TRACKS = 3
CONFIG = LoRAConfig(rank=4, alpha=8.0)


def tracks_config() -> DecoderConfig:
    """Tracks of one block, the second layer's feed-forward of experts."""
    config = tiny_config()
    first, second, third = config.layers
    second = replace(second, feed_forward=ExpertsConfig(num_experts=3, hidden_dim=16))
    return replace(config, layers=(first, second, third), tracks=TracksConfig(num_tracks=NUM_TRACKS, block_depth=3))


def tracks_decoder() -> Decoder:
    torch.set_num_threads(1)
    model = tracks_config().build(seed=1)
    with torch.no_grad():
        model.embedding.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    return model


def one_track(model: Decoder, track: int) -> Decoder:
    plain = replace(model.config, tracks=None).build()
    plain.load_state_dict({n: w[track] if n.startswith("layers.") else w for n, w in model.state_dict().items()})
    return plain


def test_every_track_has_its_own_adapter() -> None:
    model = tracks_decoder()
    plain = [one_track(model, track) for track in range(NUM_TRACKS)]
    tokens_BS = random_tokens()
    before = model(tokens_BS)
    install(model, CONFIG)
    assert torch.equal(model(tokens_BS), before)
    perturb_adapter(adapter_weights(model))
    states: list[torch.Tensor] = []
    model.tracks.leave = lambda layer, x: states.append(x) or x.mean(0) if layer == 2 else x  # type: ignore[union-attr]
    assert (model(tokens_BS) - before).abs().max() > 0.1
    for track, one in enumerate(plain):
        outputs: list[torch.Tensor] = []
        one.layers[2].register_forward_hook(lambda _module, _inputs, x, seen=outputs: seen.append(x))
        install(one, CONFIG)
        load_adapter_weights(one, {name: weight[track] for name, weight in adapter_weights(model).items()})
        one(tokens_BS)
        torch.testing.assert_close(states[0][track], outputs[0], rtol=1e-4, atol=1e-4)


def test_all_linears_are_adapted_but_experts_and_routers() -> None:
    model = tracks_decoder()
    install(model, CONFIG)
    assert {name.removeprefix("layers.1.") for name in installed(model) if name.startswith("layers.1.")} == {
        "attention.query",
        "attention.keys_values.key",
        "attention.keys_values.value",
        "attention.output",
    }
    count = sum(weight.numel() for weight in adapter_weights(model).values())
    assert count == num_adapter_parameters(tracks_config(), CONFIG)
    assert all(len(weight) == NUM_TRACKS for weight in adapter_weights(model).values())
    stored = sum(w.numel() for n, w in tracks_decoder().named_parameters() if n.startswith("layers.") and is_linear(n))
    assert adapter_bits_per_weight(tracks_config(), CONFIG) == pytest.approx(16 * count / stored)


def is_linear(name: str) -> bool:
    return name.endswith(".weight") and "norm" not in name and "router" not in name


def test_only_the_adapter_trains() -> None:
    model = tracks_decoder()
    install(model, CONFIG)
    model(random_tokens()).square().sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == set(adapter_weights(model))
    for name, lora in installed(model).items():
        assert lora.b.grad is not None
        assert all(track.any() for track in lora.b.grad), name


def test_moved_singular_vectors_leave_the_outputs_unchanged() -> None:
    model, tokens_BS = tracks_decoder(), random_tokens()
    before = model(tokens_BS)
    install(model, replace(CONFIG, start=SingularValueStart()))
    torch.testing.assert_close(model(tokens_BS), before, rtol=1e-4, atol=1e-4)
    remove(model)
    assert (model(tokens_BS) - before).abs().max() > 1e-2


def test_a_larger_rank_starts_from_a_smaller_adapter() -> None:
    model, tokens_BS = tracks_decoder(), random_tokens()
    install(model, CONFIG)
    perturb_adapter(adapter_weights(model))
    expected, weights = model(tokens_BS), adapter_weights(model)
    other = tracks_decoder()
    start_at_zero(other, replace(CONFIG, rank=7), seed=3)
    load_smaller_adapter(other, CONFIG, weights)
    torch.testing.assert_close(other(tokens_BS), expected, rtol=1e-4, atol=1e-4)
