"""Our whole server model equals tamm's PT-MoE in fp32, with weights copied both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from peers import DIM, POWER, TOLERANCE, VOCAB_SIZE, copy_to_ours, copy_to_peer, largest_difference, perturb, tokens
from torch import Tensor

from openafm.models.attention.context import PackedDocuments, Span
from openafm.models.config import AttentionConfig, DecoderConfig, LayerConfig, RotaryConfig, TrackNormConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.models.sizes import named_size, parallel_track_decoder

afm_text = pytest.importorskip("tamm.models.afm_text")

NUM_TRACKS, NUM_LAYERS, BLOCK_DEPTH, NUM_HEADS, HEAD_DIM, WINDOW, NUM_EXPERTS = 3, 8, 4, 2, 16, 8, 4
CONFIG = parallel_track_decoder(
    vocab_size=VOCAB_SIZE,
    dim=DIM,
    num_tracks=NUM_TRACKS,
    num_layers=NUM_LAYERS,
    block_depth=BLOCK_DEPTH,
    num_heads=NUM_HEADS,
    head_dim=HEAD_DIM,
    window=WINDOW,
    dense_dim=96,
    num_experts=NUM_EXPERTS,
    expert_dim=48,
    context_length=64,
)


@pytest.fixture(autouse=True)
def _one_thread_no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def server(config: DecoderConfig = CONFIG, seed: int = 0) -> Decoder:
    model = config.build().eval()
    perturb(model, seed)
    return model


def tamm_server(**options: Any) -> Any:
    config = afm_text.AFMParallelTrackMoEConfig(
        vocab_size=VOCAB_SIZE,
        num_tracks=NUM_TRACKS,
        num_layers_per_track=NUM_LAYERS,
        num_layers_per_track_per_sync_point=BLOCK_DEPTH,
        hidden_dim=DIM,
        attention_hidden_dim=NUM_HEADS * HEAD_DIM,
        num_heads=NUM_HEADS,
        dense_feed_forward_hidden_dim=96,
        sparse_feed_forward_hidden_dim=48,
        local_attention_window_size=WINDOW - 1,  # a window excludes the current token there and includes it here
        num_experts=NUM_EXPERTS,
        **options,
    )
    return config.create_builder().build().eval()


def pairs(ours: Decoder, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Every weight of both, once; tamm stores matrices of tracks and experts as [..., in, out]."""
    yield ours.embedding, theirs.embedding.weight
    yield ours.norm.weight, theirs.output_norm.weight
    segments = [segment for name, segment in theirs.layers.named_children() if name.startswith("segment_")]
    blocks = [block for segment in segments for name, block in segment.named_children() if name.startswith("layer_")]
    for a, b in zip(ours.layers, blocks, strict=True):
        query, key, value = b.attention.qkv_transform.fused_linear.weight.mT.split(NUM_HEADS * HEAD_DIM, dim=1)
        yield a.attention_norm.weight, b.attention.norm.weight
        yield a.attention.query.weight, query
        yield a.attention.keys_values.key.weight, key
        yield a.attention.keys_values.value.weight, value
        yield a.attention.query_norm.weight, b.attention.qk_norm.query_norm.weight
        yield a.attention.keys_values.key_norm.weight, b.attention.qk_norm.key_norm.weight
        yield a.attention.output.weight, b.attention.output_transform.weight.mT
        yield a.feed_forward_norm.weight, b.feed_forward.norm.weight
        yield from (_sparse if hasattr(b.feed_forward, "router") else _dense)(a.feed_forward, b.feed_forward)
    if ours.tracks is not None and ours.tracks.norms is not None:
        for norm, segment in zip(ours.tracks.norms, segments, strict=True):
            yield norm.weight, next(p for n, p in segment.named_parameters() if n.startswith("output_transform"))


def _dense(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    yield ours.gate.weight, theirs.hidden_transform.linear_0.weight.mT
    yield ours.up.weight, theirs.hidden_transform.linear_1.weight.mT
    yield ours.down.weight, theirs.output_transform.weight.mT


def _sparse(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    yield ours.router.weight, theirs.router.input_transform.weight.mT
    yield ours.gate, theirs.experts.hidden_transform.linear_0.weight.mT
    yield ours.up, theirs.experts.hidden_transform.linear_1.weight.mT
    yield ours.down, theirs.experts.output_transform.weight.mT


def difference(ours: Decoder, theirs: Any) -> float:
    return largest_difference(ours(tokens()), theirs(tokens()).logits)


def with_attention(change: Callable[[AttentionConfig], AttentionConfig]) -> DecoderConfig:
    def changed(layer: LayerConfig) -> LayerConfig:
        assert isinstance(layer.attention, AttentionConfig)
        return replace(layer, attention=change(layer.attention))

    return replace(CONFIG, layers=tuple(changed(layer) for layer in CONFIG.layers))


def with_experts(change: Callable[[ExpertsConfig], ExpertsConfig]) -> DecoderConfig:
    def changed(layer: LayerConfig) -> LayerConfig:
        experts = layer.feed_forward
        return replace(layer, feed_forward=change(experts)) if isinstance(experts, ExpertsConfig) else layer

    return replace(CONFIG, layers=tuple(changed(layer) for layer in CONFIG.layers))


def with_tracks(**changes: Any) -> DecoderConfig:
    assert CONFIG.tracks is not None
    return replace(CONFIG, tracks=replace(CONFIG.tracks, **changes))


def test_the_pairs_name_every_weight_of_both_once() -> None:
    ours, theirs = server(), tamm_server()
    paired = list(pairs(ours, theirs))
    for side, model in enumerate((ours, theirs)):
        assert sum(pair[side].numel() for pair in paired) == sum(parameter.numel() for parameter in model.parameters())


def test_our_weights_in_tamm_give_our_logits() -> None:
    ours, theirs = server(), tamm_server()
    copy_to_peer(pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


def test_tamm_s_weights_in_ours_give_its_logits() -> None:
    ours, theirs = server(), tamm_server()
    copy_to_peer(pairs(server(seed=1), theirs))
    assert difference(ours, theirs) > POWER
    copy_to_ours(pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("norm", [None, TrackNormConfig()])
@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_every_way_to_combine_tracks_equals_tamm_s(combine: str, norm: TrackNormConfig | None) -> None:
    ours = server(with_tracks(combine=combine, norm=norm))
    theirs = tamm_server(tracks_combine_op=combine, tracks_combine_norm=norm and "rms_norm")
    copy_to_peer(pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


def test_router_logits_are_capped_as_tamm_s_are() -> None:
    """A soft cap so low that it changes the logits of random weights."""
    ours = server(with_experts(lambda e: replace(e, router=TopKRouterConfig(soft_cap=1.0))))
    theirs = tamm_server(experts_router_logits_cap=1.0)
    copy_to_peer(pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE
    uncapped = server()
    uncapped.load_state_dict(ours.state_dict())
    assert difference(uncapped, theirs) > POWER


def test_the_last_positions_alone_equal_tamm_s() -> None:
    ours, theirs = server(), tamm_server()
    copy_to_peer(pairs(ours, theirs))
    bypassed = ours.head(ours.last_hidden(tokens()))[0]
    expected = theirs(tokens()).logits
    assert largest_difference(bypassed, expected[:, -1]) < TOLERANCE
    assert largest_difference(bypassed, expected[:, -2]) > POWER


def test_packed_documents_equal_tamm_s_documents_alone() -> None:
    ours, theirs = server(), tamm_server()
    copy_to_peer(pairs(ours, theirs))
    tokens_BS = tokens(num_rows=2)
    documents = [Span(row=0, start=0, stop=5), Span(row=0, start=5, stop=24), Span(row=1, start=0, stop=23)]
    packed = ours(tokens_BS, PackedDocuments(documents, 2, 24))
    for document in documents:
        alone = theirs(tokens_BS[document.row : document.row + 1, document.start : document.stop]).logits[0]
        assert largest_difference(packed[document.row, document.start : document.stop], alone) < TOLERANCE


def _longer(attention: AttentionConfig, by: int) -> AttentionConfig:
    return attention if attention.window is None else replace(attention, window=attention.window + by)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(with_attention(lambda a: _longer(a, 1)), id="window one longer"),
        pytest.param(with_attention(lambda a: _longer(a, -1)), id="window one shorter"),
        pytest.param(with_attention(lambda a: replace(a, position=RotaryConfig())), id="rotation in global layers"),
        pytest.param(with_attention(lambda a: replace(a, position=None)), id="no rotation"),
        pytest.param(with_attention(lambda a: replace(a, qk_norm=None)), id="no QK-norm"),
        pytest.param(with_experts(lambda e: replace(e, router=TopKRouterConfig(num_chosen=1))), id="one expert chosen"),
        pytest.param(with_tracks(combine="sum"), id="sum instead of mean"),
        pytest.param(with_tracks(block_depth=2), id="blocks half as deep"),
    ],
)
def test_the_comparison_sees_one_rule_broken(config: DecoderConfig) -> None:
    ours, theirs = server(), tamm_server()
    copy_to_peer(pairs(ours, theirs))
    other = config.build().eval()
    other.load_state_dict({name: weight for name, weight in ours.state_dict().items() if name in other.state_dict()})
    assert difference(other, theirs) > POWER


def test_the_comparison_sees_one_expert_s_weights_in_another_s_place() -> None:
    ours, theirs = server(), tamm_server()
    copy_to_peer(pairs(ours, theirs))
    for name in ("layers.1.feed_forward.gate", "layers.5.feed_forward.down", "layers.3.feed_forward.router.weight"):
        for dim in (0, 1):
            other = server()
            other.load_state_dict(ours.state_dict() | {name: ours.state_dict()[name].roll(1, dim)})
            assert difference(other, theirs) > POWER, (name, dim)


def test_the_comparison_sees_a_norm_left_at_its_default() -> None:
    ours, theirs = server(), tamm_server()
    copy_to_peer(pairs(ours, theirs))
    norms = {name: weight for name, weight in ours.state_dict().items() if "norm" in name}
    for name in [name for name in norms if name.startswith(("layers.3.", "layers.6.", "norm."))]:
        other = server()
        other.load_state_dict(ours.state_dict() | {name: torch.ones_like(norms[name])})
        assert difference(other, theirs) > POWER, name


@pytest.mark.slow
def test_both_count_the_same_parameters_at_the_report_s_size() -> None:
    with torch.device("meta"):
        theirs = afm_text.AFMParallelTrackMoEConfig().create_builder().build()
        ours = named_size("server.full").build()
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    assert counts == [147_803_703_296] * 2
