"""Our whole on-device model equals tamm's AFMTextV7 in fp32, with weights copied both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peers import (
    DIM,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    NUM_OWN_LAYERS,
    POWER,
    TOLERANCE,
    VOCAB_SIZE,
    copy_to_ours,
    copy_to_peer,
    decoder,
    largest_difference,
    layer,
    perturb,
    plain_layers,
    sharing_layers,
    tamm_pairs,
    tokens,
)
from torch import Tensor

from openafm.models.attention.context import PackedDocuments, Span
from openafm.models.config import QKNormConfig, RotaryConfig
from openafm.models.decoder import Decoder
from openafm.models.sizes import named_size

afm_text = pytest.importorskip("tamm.models.afm_text")


@pytest.fixture(autouse=True)
def _one_thread_no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def tamm_model(num_kv_reuse_layers: int = NUM_LAYERS - NUM_OWN_LAYERS) -> Any:
    builder = afm_text.AFMTextV7.create_basic_builder(
        vocab_size=VOCAB_SIZE,
        hidden_dim=DIM,
        num_layers=NUM_LAYERS,
        num_kv_reuse_layers=num_kv_reuse_layers,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
    )
    return builder.build().eval()


def difference(ours: Decoder, theirs: Any) -> float:
    return largest_difference(ours(tokens()), theirs(tokens()).logits)


def test_the_pairs_name_every_weight_of_both_once() -> None:
    ours, theirs = decoder(sharing_layers()), tamm_model()
    pairs = list(tamm_pairs(ours, theirs))
    for side, model in enumerate((ours, theirs)):
        assert sum(pair[side].numel() for pair in pairs) == sum(parameter.numel() for parameter in model.parameters())


def test_our_weights_in_tamm_give_our_logits() -> None:
    ours, theirs = decoder(sharing_layers()), tamm_model()
    copy_to_peer(tamm_pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


def test_tamm_s_weights_in_ours_give_its_logits() -> None:
    ours, theirs = decoder(sharing_layers()), tamm_model()
    perturb(theirs, seed=1)
    assert difference(ours, theirs) > POWER
    copy_to_ours(tamm_pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


def test_without_sharing_both_agree_too() -> None:
    """The draft model's shape."""
    ours, theirs = decoder(plain_layers()), tamm_model(num_kv_reuse_layers=0)
    pairs = list(_without_segments(ours, theirs))
    copy_to_peer(pairs)
    assert difference(ours, theirs) < TOLERANCE


def test_the_last_positions_alone_equal_tamm_s() -> None:
    ours, theirs = decoder(sharing_layers()), tamm_model()
    copy_to_peer(tamm_pairs(ours, theirs))
    bypassed = ours.head(ours.last_hidden(tokens()))[0]
    expected = theirs(tokens()).logits
    assert largest_difference(bypassed, expected[:, -1]) < TOLERANCE
    assert largest_difference(bypassed, expected[:, -2]) > POWER


def test_packed_documents_equal_tamm_s_segments() -> None:
    ours, theirs = decoder(sharing_layers()), tamm_model()
    copy_to_peer(tamm_pairs(ours, theirs))
    tokens_BS = tokens(num_rows=2)
    documents = [
        Span(row=0, start=0, stop=7),
        Span(row=0, start=7, stop=24),
        Span(row=1, start=0, stop=23),
        Span(row=1, start=23, stop=24),
    ]
    segments_BS = torch.zeros_like(tokens_BS)
    for number, document in enumerate(documents):
        segments_BS[document.row, document.start : document.stop] = number + 1
    packed = ours(tokens_BS, PackedDocuments(documents, 2, 24))
    assert largest_difference(packed, theirs(tokens_BS, segment_ids=segments_BS).logits) < TOLERANCE
    assert largest_difference(packed, theirs(tokens_BS).logits) > POWER


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param(sharing_layers(position=RotaryConfig(layout="half")), id="half layout"),
        pytest.param(sharing_layers(source=NUM_OWN_LAYERS - 2), id="source one layer earlier"),
        pytest.param([layer(position=None)] * NUM_OWN_LAYERS + sharing_layers()[NUM_OWN_LAYERS:], id="no rotation"),
        pytest.param(sharing_layers(qk_norm=QKNormConfig(order="before_position")), id="norm before rotation"),
    ],
)
def test_the_comparison_sees_one_rule_broken(layers: list[Any]) -> None:
    ours, theirs = decoder(sharing_layers()), tamm_model()
    copy_to_peer(tamm_pairs(ours, theirs))
    other = decoder(layers)
    other.load_state_dict(ours.state_dict())
    assert difference(other, theirs) > POWER


def test_the_comparison_sees_a_norm_left_at_its_default() -> None:
    ours, theirs = decoder(sharing_layers()), tamm_model()
    copy_to_peer(tamm_pairs(ours, theirs))
    norms = {name: weight for name, weight in ours.state_dict().items() if "norm" in name}
    assert {name.split(".", 2)[-1] for name in norms} == {
        "weight",
        "attention_norm.weight",
        "attention.query_norm.weight",
        "attention.keys_values.key_norm.weight",
        "feed_forward_norm.weight",
    }
    for name in [name for name in norms if name.startswith(("layers.4.", "layers.6.", "norm."))]:
        other = decoder(sharing_layers())
        other.load_state_dict(ours.state_dict() | {name: torch.ones_like(norms[name])})
        assert difference(other, theirs) > POWER, name


def test_both_count_the_same_parameters_at_the_report_s_size() -> None:
    with torch.device("meta"):
        theirs = afm_text.AFMTextV7.create_basic_builder().build()
        ours = named_size("on_device.base").build()
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    assert counts == [3_111_368_064] * 2


def _without_segments(ours: Decoder, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """tamm builds a model without sharing as one flat sequence of layers."""
    theirs.layers = torch.nn.ModuleList([theirs.layers])
    pairs = list(tamm_pairs(ours, theirs))
    theirs.layers = theirs.layers[0]
    return iter(pairs)
