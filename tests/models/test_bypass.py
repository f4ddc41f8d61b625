"""The prefill bypass: layers that store nothing run for the wanted positions only, with equal results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

from openafm.models.attention.context import PackedDocuments, WholeRows
from openafm.models.config import DecoderConfig, LayerConfig, TrackNormConfig, TracksConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts_config import ExpertsConfig

TOLERANCE = 1e-5


def in_tracks(config: DecoderConfig, block_depth: int) -> DecoderConfig:
    return replace(config, tracks=TracksConfig(num_tracks=3, block_depth=block_depth, norm=TrackNormConfig()))


def with_experts(config: LayerConfig) -> LayerConfig:
    return replace(config, feed_forward=ExpertsConfig(num_experts=3, hidden_dim=24))


CONFIGS = {
    "shared": decoder_config(layer(), layer(), layer(source=1), layer(source=1)),
    "windows": decoder_config(layer(window=3), layer(), layer(source=1, window=4), layer(source=0)),
    "nothing shared": decoder_config(layer(), layer(window=2)),
    "no position": decoder_config(layer(position=None), layer(source=0, position=None)),
    "tracks": in_tracks(decoder_config(layer(window=3), with_experts(layer()), layer(source=0), layer(source=1)), 2),
    "tracks that end where keys and values do": in_tracks(decoder_config(layer(), layer(), layer(source=1)), 1),
    "tracks that share nothing": in_tracks(decoder_config(layer(window=3), with_experts(layer(position=None))), 2),
}
IN_DOCUMENTS = [d.row * ROW_LENGTH + at for d in DOCUMENTS for at in range(d.start, d.stop)]


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_last_positions_of_whole_rows_equal_the_full_pass(name: str) -> None:
    model = perturbed(CONFIGS[name])
    tokens_BS = random_tokens(3, 11)
    full = model.hidden(tokens_BS)
    last = model.last_hidden(tokens_BS)
    assert last.shape == (1, 3, 32)
    assert largest_difference(last[0], full[:, -1]) < TOLERANCE
    assert largest_difference(last[0], full[:, -2]) > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_last_positions_of_packed_documents_equal_the_full_pass(name: str) -> None:
    model = perturbed(CONFIGS[name])
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    full = model.hidden(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
    last = model.last_hidden(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
    expected = torch.stack([full[d.row, d.stop - 1] for d in DOCUMENTS])
    assert largest_difference(last[0], expected) < TOLERANCE


@settings(deadline=None, max_examples=12)
@given(
    chosen=st.sets(st.sampled_from(IN_DOCUMENTS), min_size=1),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_any_positions_equal_the_full_pass(chosen: set[int], name: str) -> None:
    with torch.no_grad():
        model = perturbed(CONFIGS[name])
        tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
        indices_N = torch.tensor(sorted(chosen))
        full = model.hidden(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
        some = model.hidden_at(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH), indices_N)
    assert largest_difference(some[0], full.flatten(0, 1)[indices_N]) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in CONFIGS if name == "windows" or "tracks" in name])
def test_gradients_through_the_bypass_equal_those_of_the_full_pass(name: str) -> None:
    model = perturbed(CONFIGS[name])
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    indices_N = torch.tensor(IN_DOCUMENTS[1::3])
    weights = list(model.parameters())
    full = model.hidden(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH)).flatten(0, 1)[indices_N]
    some = model.hidden_at(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH), indices_N)[0]
    for of_full, of_some in zip(
        torch.autograd.grad(full.square().sum(), weights), torch.autograd.grad(some.square().sum(), weights), strict=True
    ):
        assert largest_difference(of_full, of_some) < 1e-4 * max(1.0, of_full.abs().max().item())


@torch.no_grad()
def test_from_the_last_stored_keys_on_only_the_last_position_passes() -> None:
    model = perturbed(CONFIGS["shared"])
    passed: list[int] = []
    for block in model.layers:
        block.feed_forward.register_forward_hook(lambda _module, inputs, _output: passed.append(inputs[0].shape[1]))
    model.last_hidden(random_tokens(1, 11))
    assert passed == [11, 1, 1, 1]


@torch.no_grad()
def test_a_skipped_layer_that_stores_keys_and_values_is_an_error() -> None:
    context = WholeRows(1, 4)
    model: Decoder = perturbed(CONFIGS["nothing shared"])
    narrowed = context.narrow(torch.tensor([3]))
    with pytest.raises(AssertionError, match="layer 0 stores keys and values"):
        model.layers[0](torch.zeros(1, 1, 32), narrowed)
