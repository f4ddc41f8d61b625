"""A branch sees the beginning of its document and itself, and equals the beginning with this branch alone."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from tiny_decoders import decoder_config, largest_difference, layer, perturbed, random_tokens
from torch import Tensor

from openafm.models.attention.branched_documents import BranchedDocuments
from openafm.models.attention.config import PrefixAttentionConfig
from openafm.models.attention.spans import EmbeddingSpan, Span, branches_of
from openafm.models.decoder import Decoder

CONFIGS = {
    "global": decoder_config(layer(), layer(), layer(source=1)),
    "window": decoder_config(layer(window=3), layer(window=4), layer(source=1, window=2)),
    "no position": decoder_config(layer(window=3), layer(position=None), layer(source=1, position=None)),
    "last layer alone": decoder_config(layer()),
}
NUM_ROWS, ROW_LENGTH = 2, 18
DOCUMENTS = (Span(0, 0, 12), Span(0, 12, 16), Span(1, 2, 5), Span(1, 5, 18))  # padding at 0:16 and before 1:2
BRANCHES = (Span(0, 5, 8), Span(0, 8, 12), Span(1, 2, 4), Span(1, 4, 5), Span(1, 6, 18))
LOSS = torch.tensor([5, 6, 9, 11, 13, 20, 22, 24, 25, 35])  # some positions of the flattened batch, one of a plain document


def context(documents: tuple[Span, ...] = DOCUMENTS, branches: tuple[Span, ...] = BRANCHES) -> BranchedDocuments:
    return BranchedDocuments(documents, branches, NUM_ROWS, ROW_LENGTH)


def alone(model: Decoder, tokens_BS: Tensor) -> Tensor:
    """Return the hidden states of a batch whose branches are computed one by one, [B, S, D]."""
    hidden_BSD = torch.zeros(NUM_ROWS, ROW_LENGTH, model.config.dim)
    for document, own in zip(DOCUMENTS, branches_of(DOCUMENTS, BRANCHES), strict=True):
        row_S, out_SD = tokens_BS[document.row], hidden_BSD[document.row]
        for branch in own or [document]:
            shared = slice(document.start, own[0].start if own else document.start)
            tokens_1L = torch.cat((row_S[shared], row_S[branch.start : branch.stop]))[None]
            x_LD = model.hidden(tokens_1L)[0]
            out_SD[shared], out_SD[branch.start : branch.stop] = x_LD.split(
                [shared.stop - shared.start, branch.stop - branch.start]
            )
    return hidden_BSD


@pytest.mark.parametrize("name", CONFIGS)
def test_every_branch_equals_its_document_without_the_others(name: str) -> None:
    model, tokens_BS = perturbed(CONFIGS[name]), random_tokens(NUM_ROWS, ROW_LENGTH)
    expected_BSD = alone(model, tokens_BS)
    hidden_BSD = model.hidden(tokens_BS, context())
    assert (hidden_BSD - expected_BSD).abs()[expected_BSD.abs().sum(-1) > 0].max() < 1e-5
    at_loss_1ND = model.hidden_at(tokens_BS, context(), LOSS)
    assert largest_difference(at_loss_1ND[0], expected_BSD.flatten(0, 1)[LOSS]) < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_of_a_beginning_are_those_of_all_its_branches(name: str) -> None:
    model, tokens_BS = perturbed(CONFIGS[name]), random_tokens(NUM_ROWS, ROW_LENGTH)
    weights = [model.embedding, model.layers[0].attention.keys_values.key.weight]
    of_branches = torch.autograd.grad(model.hidden_at(tokens_BS, context(), LOSS).sin().sum(), weights)
    of_each = torch.autograd.grad(alone(model, tokens_BS).flatten(0, 1)[LOSS].sin().sum(), weights)
    for one, other in zip(of_branches, of_each, strict=True):
        assert other.abs().max() > 1e-2
        assert largest_difference(one, other) < 1e-4


def test_a_branch_longer_than_its_window_is_computed_in_blocks() -> None:
    model = perturbed(decoder_config(layer(window=5), layer(window=70)))
    tokens_1S = random_tokens(1, 500)
    branches = (Span(0, 40, 240), Span(0, 240, 500))
    found = model.hidden(tokens_1S, BranchedDocuments((Span(0, 0, 500),), branches, 1, 500))[0]
    for branch in branches:
        expected = model.hidden(torch.cat((tokens_1S[:, :40], tokens_1S[:, branch.start : branch.stop]), 1))[0, 40:]
        assert largest_difference(found[branch.start : branch.stop], expected) < 1e-5


def test_positions_of_a_branch_continue_the_beginning() -> None:
    first, second = context().positions_BS.tolist()
    assert first == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 0, 1, 2, 3, 0, 0]
    assert second == [0, 0, 0, 1, 0, 0, *range(1, 13)]


def test_positions_of_a_span_see_each_other_in_every_branch() -> None:
    plain = layer()
    attention = PrefixAttentionConfig(**{each.name: getattr(plain.attention, each.name) for each in fields(plain.attention)})
    model, tokens_1S = perturbed(decoder_config(replace(plain, attention=attention))), random_tokens(1, 9)
    branches = (Span(0, 4, 6), Span(0, 6, 9))
    span = EmbeddingSpan(0, 1, 4, "00")
    found = model.hidden(tokens_1S, BranchedDocuments((Span(0, 0, 9),), branches, 1, 9, spans=(span,)))[0]
    changed_1S = tokens_1S.clone()
    changed_1S[0, 3] = (changed_1S[0, 3] + 1) % 60
    changed = model.hidden(changed_1S, BranchedDocuments((Span(0, 0, 9),), branches, 1, 9, spans=(span,)))[0]
    differs = (found != changed).any(-1).tolist()
    assert differs == [False, True, True, True, True, True, True, True, True]
