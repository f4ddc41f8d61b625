"""Masks other than causal, and embeddings inserted for spans of tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_decoders import decoder_config, largest_difference, layer, perturbed, random_tokens
from torch import Tensor

from openafm.models.attention.context import PackedDocuments, WholeRows
from openafm.models.attention.masked_attention import UnsupportedMaskError
from openafm.models.attention.masks import BidirectionalMask, CausalMask, Mask, PrefixMask
from openafm.models.attention.spans import EmbeddingSpan, Span, SpanError
from openafm.models.config import (
    AttentionConfig,
    BidirectionalAttentionConfig,
    DecoderConfig,
    PrefixAttentionConfig,
)

ROWS = 2, 9
SPANS = (Span(row=0, start=2, stop=5), Span(row=0, start=5, stop=7), Span(row=1, start=0, stop=3))
DOCUMENTS = (Span(row=0, start=0, stop=8), Span(row=1, start=0, stop=4), Span(row=1, start=4, stop=9))


def visible(mask: Mask, query: int, key: int, row: int, documents: tuple[Span, ...]) -> bool:
    """The definition of the three masks."""
    if not any(d.row == row and d.start <= query < d.stop and d.start <= key < d.stop for d in documents):
        return False
    if isinstance(mask, BidirectionalMask):
        return True
    assert isinstance(mask, CausalMask | PrefixMask)
    if key <= query and (mask.window is None or query - key < mask.window):
        return True
    in_one_span = any(s.row == row and s.start <= query < s.stop and s.start <= key < s.stop for s in SPANS)
    return isinstance(mask, PrefixMask) and in_one_span


def written_out(mask: Mask, q_BSHC: Tensor, k_BSHC: Tensor, v_BSHC: Tensor, documents: tuple[Span, ...]) -> Tensor:
    scores_BHSS = torch.einsum("bqhc,blhc->bhql", q_BSHC, k_BSHC) / q_BSHC.shape[-1] ** 0.5
    sees_BSS = torch.tensor(
        [[[visible(mask, q, k, b, documents) for k in range(ROWS[1])] for q in range(ROWS[1])] for b in range(ROWS[0])]
    )
    weights = scores_BHSS.masked_fill(~sees_BSS[:, None], -torch.inf).softmax(-1).nan_to_num()
    return torch.einsum("bhql,blhc->bqhc", weights, v_BSHC)


MASKS = [CausalMask(), CausalMask(2), PrefixMask(), PrefixMask(2), BidirectionalMask()]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_every_mask_equals_its_definition_in_whole_rows_documents_and_narrowed(mask: Mask) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, *ROWS, 2, 4, generator=generator)
    rows = tuple(Span(row=row, start=0, stop=ROWS[1]) for row in range(ROWS[0]))
    for documents, context in (
        (rows, WholeRows(*ROWS, spans=SPANS)),
        (DOCUMENTS, PackedDocuments(DOCUMENTS, *ROWS, spans=SPANS)),
    ):
        context.store(0, k, v)
        expected = written_out(mask, q, k, v, documents)
        assert largest_difference(context.attend(0, q, mask), expected) < 1e-6
        indices_N = torch.tensor([0, 3, 5, 7, 9, 10, 11, 17])
        narrowed = context.narrow(indices_N).attend(0, q.flatten(0, 1)[indices_N][None], mask)
        assert largest_difference(narrowed[0], expected.flatten(0, 1)[indices_N]) < 1e-6


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_pairs_of_a_mask_are_those_that_its_definition_sees(mask: Mask) -> None:
    alone = (Span(row=1, start=4, stop=9),)
    assert mask.num_pairs(5) == sum(visible(mask, q, k, 1, alone) for q in range(9) for k in range(9))


def test_an_unknown_mask_is_a_typed_error() -> None:
    class EveryOther(Mask):
        def num_pairs(self, length: int) -> int:
            return length

    context = WholeRows(1, 4)
    context.store(0, *torch.zeros(2, 1, 4, 1, 2))
    with pytest.raises(UnsupportedMaskError, match="EveryOther; supported: CausalMask"):
        context.attend(0, torch.zeros(1, 4, 1, 2), EveryOther())


def with_attention(kind: type[AttentionConfig]) -> DecoderConfig:
    def changed(source: int | None) -> AttentionConfig:
        attention = layer(source).attention
        assert isinstance(attention, AttentionConfig)
        return kind(**{field.name: getattr(attention, field.name) for field in dataclasses.fields(attention)})

    return decoder_config(*(dataclasses.replace(layer(), attention=changed(source)) for source in (None, 0)))


IMAGE = EmbeddingSpan(row=0, start=2, stop=5, digest="00")


@torch.no_grad()
def test_inserted_embeddings_replace_those_of_the_tokens_on_every_path() -> None:
    model = perturbed(with_attention(PrefixAttentionConfig))
    tokens_BS = random_tokens(1, 8)
    inserted = [(IMAGE, torch.randn(3, 32, generator=torch.Generator().manual_seed(1)))]
    full = model.hidden(tokens_BS, None, inserted)
    other_tokens_BS = tokens_BS.clone()
    other_tokens_BS[0, 2:5] = 0
    assert torch.equal(model.hidden(other_tokens_BS, None, inserted), full)
    assert largest_difference(full, model.hidden(tokens_BS)) > 1e-2
    assert largest_difference(model.last_hidden(tokens_BS, None, inserted)[0], full[:, -1]) < 1e-5
    indices_N = torch.tensor([1, 3, 6])
    some = model.hidden_at(tokens_BS, WholeRows(1, 8, spans=[IMAGE]), indices_N, inserted)
    assert largest_difference(some[0], full[0, indices_N]) < 1e-5
    assert torch.equal(model(tokens_BS, None, inserted), model.head(full))


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "influenced"),
    [
        (AttentionConfig, [4, 5, 6, 7]),
        (PrefixAttentionConfig, [2, 3, 4, 5, 6, 7]),
        (BidirectionalAttentionConfig, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_last_embedding_of_an_image_reaches_the_positions_that_may_see_it(
    kind: type[AttentionConfig], influenced: list[int]
) -> None:
    model = perturbed(with_attention(kind))
    embeddings_LD = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    changed_LD = embeddings_LD.clone()
    changed_LD[2] += 1
    tokens_BS = random_tokens(1, 8)
    before, after = (model.hidden(tokens_BS, None, [(IMAGE, e)])[0] for e in (embeddings_LD, changed_LD))
    assert [i for i in range(8) if not torch.equal(before[i], after[i])] == influenced


def test_gradients_reach_the_inserted_embeddings_and_skip_the_tokens_below() -> None:
    model = perturbed(decoder_config(layer()))
    embeddings_LD = torch.randn(3, 32, requires_grad=True)
    model.hidden(torch.arange(8)[None], None, [(IMAGE, embeddings_LD)]).square().sum().backward()
    assert embeddings_LD.grad is not None
    assert embeddings_LD.grad.abs().min() > 0
    assert model.embedding.grad is not None
    assert [i for i in range(8) if model.embedding.grad[i].count_nonzero()] == [0, 1, 5, 6, 7]


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([IMAGE._replace(stop=6)], r"needs embeddings of shape \[4, 32\], got \[3, 32\]"),
        ([IMAGE._replace(row=1)], "lies outside of the batch of 1 rows of 8 tokens"),
        ([IMAGE._replace(start=6, stop=9)], "lies outside"),
        ([IMAGE, IMAGE._replace(start=4, stop=7)], "4..7 of row 0 overlaps another"),
    ],
)
def test_embeddings_that_do_not_match_the_batch_are_refused(spans: list[EmbeddingSpan], text: str) -> None:
    model = decoder_config(layer()).build()
    with pytest.raises(SpanError, match=text):
        model(random_tokens(1, 8), None, [(span, torch.zeros(3, 32)) for span in spans])
