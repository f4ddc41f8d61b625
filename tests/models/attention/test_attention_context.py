"""A query sees its own document, up to its own position, within the window, and no other position."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoders import (
    DOCUMENTS,
    NUM_ROWS,
    ROW_LENGTH,
    VOCAB_SIZE,
    decoder_config,
    largest_difference,
    layer,
    perturbed,
    random_tokens,
)
from torch import Tensor

from openafm.models.attention.context import PackedDocuments, Span, WholeRows
from openafm.models.attention.masked_attention import causal_attention
from openafm.models.attention.masks import CausalMask
from openafm.models.decoder import Decoder

TOLERANCE = 1e-5
CONFIGS = {
    "global": decoder_config(layer(), layer(), layer(source=1)),
    "window": decoder_config(layer(window=3), layer(window=4), layer(source=1, window=2)),
    "no position": decoder_config(layer(window=3), layer(position=None), layer(source=1, position=None)),
}


def seen_by(model: Decoder, tokens_1S: Tensor, position: int) -> list[int]:
    """The positions whose token has any influence on the logits at `position`."""
    logits_V = model(tokens_1S)[0, position]
    seen = []
    for index in range(tokens_1S.shape[1]):
        changed_1S = tokens_1S.clone()
        changed_1S[0, index] = (changed_1S[0, index] + 1) % VOCAB_SIZE
        if not torch.equal(model(changed_1S)[0, position], logits_V):
            seen.append(index)
    return seen


@torch.no_grad()
def test_without_a_window_a_query_sees_itself_and_all_before() -> None:
    model = perturbed(decoder_config(layer()))
    assert seen_by(model, random_tokens(1, 9), position=5) == [0, 1, 2, 3, 4, 5]


@torch.no_grad()
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_window_counts_the_query_s_own_position(window: int) -> None:
    model = perturbed(decoder_config(layer(window=window)))
    assert seen_by(model, random_tokens(1, 9), position=6) == list(range(7 - window, 7))


@torch.no_grad()
def test_windows_of_two_layers_add_up_less_the_shared_position() -> None:
    model = perturbed(decoder_config(layer(window=3), layer(window=2)))
    assert seen_by(model, random_tokens(1, 9), position=8) == [5, 6, 7, 8]


@torch.no_grad()
def test_a_window_as_long_as_the_document_is_no_window() -> None:
    tokens_BS = random_tokens(2, 7)
    everything = perturbed(decoder_config(layer(), layer()))(tokens_BS)
    assert torch.equal(perturbed(decoder_config(layer(window=7), layer(window=9)))(tokens_BS), everything)
    assert largest_difference(perturbed(decoder_config(layer(window=6), layer(window=9)))(tokens_BS), everything) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_every_packed_document_equals_the_document_alone(name: str) -> None:
    model = perturbed(CONFIGS[name])
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    packed = model(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
    for d in DOCUMENTS:
        alone = model(tokens_BS[d.row : d.row + 1, d.start : d.stop])
        assert largest_difference(packed[d.row, d.start : d.stop], alone[0]) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_documents_never_see_each_other_to_the_bit(name: str) -> None:
    model = perturbed(CONFIGS[name])
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    logits = model(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
    for d in DOCUMENTS:
        changed_BS = random_tokens(NUM_ROWS, ROW_LENGTH, seed=1)
        changed_BS[d.row, d.start : d.stop] = tokens_BS[d.row, d.start : d.stop]
        changed = model(changed_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
        assert torch.equal(changed[d.row, d.start : d.stop], logits[d.row, d.start : d.stop])


@st.composite
def packings(draw: st.DrawFn) -> list[Span]:
    """Rows divided into documents at random places; some parts are padding."""
    documents = []
    for row in range(NUM_ROWS):
        cuts = sorted({0, ROW_LENGTH} | draw(st.sets(st.integers(1, ROW_LENGTH - 1), max_size=5)))
        pieces = [Span(row=row, start=start, stop=stop) for start, stop in itertools.pairwise(cuts)]
        documents += [piece for piece in pieces if draw(st.integers(0, 3))]
    return documents or [Span(row=1, start=2, stop=4)]


@settings(deadline=None, max_examples=10)
@given(documents=packings())
def test_any_packing_equals_the_documents_alone(documents: list[Span]) -> None:
    model = perturbed(CONFIGS["window"])
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    with torch.no_grad():
        packed = model(tokens_BS, PackedDocuments(documents, NUM_ROWS, ROW_LENGTH))
        for d in documents:
            alone = model(tokens_BS[d.row : d.row + 1, d.start : d.stop])
            assert largest_difference(packed[d.row, d.start : d.stop], alone[0]) < TOLERANCE


@torch.no_grad()
def test_rows_that_are_one_document_each_are_a_case_of_packing() -> None:
    model = perturbed(CONFIGS["window"])
    tokens_BS = random_tokens(2, 10)
    rows = [Span(row=row, start=0, stop=10) for row in range(2)]
    assert largest_difference(model(tokens_BS), model(tokens_BS, PackedDocuments(rows, 2, 10))) < TOLERANCE


def test_gradients_of_packed_documents_are_those_of_the_documents_alone() -> None:
    model = perturbed(CONFIGS["window"])
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    weight = model.layers[0].attention.keys_values.key.weight
    hidden = model.hidden(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH))
    packed = sum(hidden[d.row, d.start : d.stop].sum() for d in DOCUMENTS)
    alone = sum(model.hidden(tokens_BS[d.row : d.row + 1, d.start : d.stop]).sum() for d in DOCUMENTS)
    (of_packed,), (of_alone,) = torch.autograd.grad(packed, weight), torch.autograd.grad(alone, weight)
    assert of_packed.abs().max() > 1e-2
    assert largest_difference(of_packed, of_alone) < 1e-4


def test_positions_count_from_zero_in_every_document_and_padding_has_none() -> None:
    context = PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH)
    expected_BS = torch.zeros(NUM_ROWS, ROW_LENGTH, dtype=torch.long)
    for d in DOCUMENTS:
        expected_BS[d.row, d.start : d.stop] = torch.arange(d.stop - d.start)
    assert torch.equal(context.positions_BS, expected_BS)


def test_padding_has_an_output_of_zeros() -> None:
    context = PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH)
    x_BSHC = torch.randn(NUM_ROWS, ROW_LENGTH, 2, 4)
    context.store(0, x_BSHC, x_BSHC)
    output_BS = context.attend(0, x_BSHC, CausalMask()).abs().sum((2, 3))
    is_document_BS = torch.zeros(NUM_ROWS, ROW_LENGTH, dtype=torch.bool)
    for d in DOCUMENTS:
        is_document_BS[d.row, d.start : d.stop] = True
    assert torch.equal(output_BS > 0, is_document_BS)


@settings(deadline=None, max_examples=15)
@given(
    num_queries=st.integers(1, 6),
    num_past=st.integers(0, 6),
    window=st.none() | st.integers(1, 14),
    num_kv_heads=st.sampled_from([1, 2, 4]),
)
def test_causal_attention_equals_a_softmax_written_out(
    num_queries: int, num_past: int, window: int | None, num_kv_heads: int
) -> None:
    generator = torch.Generator().manual_seed(num_queries * 100 + num_past)
    num_keys = num_past + num_queries
    q_BQHC = torch.randn(2, num_queries, 4, 8, generator=generator)
    k_BLKC, v_BLKC = torch.randn(2, 2, num_keys, num_kv_heads, 8, generator=generator)
    output_BQHC = causal_attention(q_BQHC, k_BLKC, v_BLKC, window)
    for query in range(num_queries):
        at = num_past + query
        first = 0 if window is None else max(0, at - window + 1)
        for head in range(4):
            kv_head = head * num_kv_heads // 4
            scores_BL = torch.einsum("bc,blc->bl", q_BQHC[:, query, head], k_BLKC[:, first : at + 1, kv_head]) / 8**0.5
            expected_BC = torch.einsum("bl,blc->bc", scores_BL.softmax(-1), v_BLKC[:, first : at + 1, kv_head])
            assert largest_difference(output_BQHC[:, query, head], expected_BC) < TOLERANCE


@torch.no_grad()
def test_keys_and_values_pass_the_slot_on_their_way_into_the_context() -> None:
    model = perturbed(decoder_config(layer(), layer(source=0)))
    tokens_BS = random_tokens(1, 6)
    stored: list[Tensor] = []

    class Recorder(torch.nn.Module):
        def forward(self, x_BSKC: Tensor) -> Tensor:
            stored.append(x_BSKC)
            return torch.zeros_like(x_BSKC)

    model.layers[0].attention.keys_values.slot = Recorder()
    context = WholeRows(1, 6)
    model(tokens_BS, context)
    assert [x.shape for x in stored] == [(1, 6, 2, 8)] * 2
    q_BSHC = torch.randn(1, 6, 4, 8)
    assert context.attend(0, q_BSHC, CausalMask()).count_nonzero() == 0


def masked_attention(q_BSHC: Tensor, k_BSKC: Tensor, v_BSKC: Tensor, window: int) -> Tensor:
    """The definition, all scores at once."""
    group = q_BSHC.shape[2] // k_BSKC.shape[2]
    k_BSHC, v_BSHC = (x.repeat_interleave(group, dim=2) for x in (k_BSKC, v_BSKC))
    places = torch.arange(q_BSHC.shape[1])
    ages_QL = places[:, None] - places
    scores_BHQL = torch.einsum("bqhc,blhc->bhql", q_BSHC, k_BSHC) / q_BSHC.shape[-1] ** 0.5
    scores_BHQL = scores_BHQL.masked_fill((ages_QL < 0) | (ages_QL >= window), -torch.inf)
    return torch.einsum("bhql,blhc->bqhc", scores_BHQL.softmax(-1), v_BSHC)


# Blocks that divide the length and that do not; windows below, at and above the smallest block; one row and several.
@pytest.mark.parametrize(
    ("length", "window"), [(129, 2), (130, 3), (192, 64), (193, 64), (255, 63), (300, 65), (401, 100), (640, 200)]
)
@pytest.mark.parametrize(("num_rows", "num_kv_heads"), [(1, 1), (2, 4)])
def test_local_attention_in_blocks_equals_the_definition_forward_and_backward(
    length: int, window: int, num_rows: int, num_kv_heads: int
) -> None:
    generator = torch.Generator().manual_seed(length)
    shapes = [(num_rows, length, heads, 8) for heads in (4, num_kv_heads, num_kv_heads)]
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    weight = torch.randn(shapes[0], generator=generator)  # so that no gradient cancels
    results = []
    for attention in (causal_attention, masked_attention):
        output = attention(*inputs, window)
        results.append((output, *torch.autograd.grad((output * weight).sum(), inputs)))
    for blocks, definition in zip(*results, strict=True):
        assert definition.abs().max() > 1e-2
        assert largest_difference(blocks, definition) < TOLERANCE


@pytest.mark.parametrize("window", [1, 64, 100])
def test_local_attention_never_holds_a_score_of_every_pair(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores per position stay the same however long the document."""
    scores: list[int] = []
    whole = F.scaled_dot_product_attention

    def counted(query: Tensor, key: Tensor, *others: Tensor, **options: Any) -> Tensor:
        scores.append(query.shape[0] * query.shape[2] * key.shape[2])
        return whole(query, key, *others, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    per_position = []
    for length in (1024, 4096):
        scores.clear()
        x_BSHC = torch.randn(1, length, 1, 8)
        causal_attention(x_BSHC, x_BSHC, x_BSHC, window)
        per_position.append(sum(scores) / length)
    assert per_position[1] <= per_position[0] * 1.1 <= 2.5 * max(window, 64)
