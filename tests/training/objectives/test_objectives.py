"""The next-token objective against the plain computation, with packing and prefill bypass."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import VOCAB_SIZE, tiny_model
from torch import Tensor

from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import Span
from openafm.models.decoder import Decoder
from openafm.training.objectives.base import NextToken

ROWS, ROW_TOKENS = 2, 24


def batch_of(spans: list[Span], mask_BS: np.ndarray, seed: int) -> Batch:
    """Return random tokens in the spans; the mask covers only positions with a next token."""
    tokens_BS = np.random.default_rng(seed).integers(1, VOCAB_SIZE, mask_BS.shape)
    has_target_BS = np.zeros_like(mask_BS)
    for span in spans:
        has_target_BS[span.row, span.start : span.stop - 1] = True
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=np.roll(tokens_BS, -1, axis=1),
        loss_mask_BS=mask_BS & has_target_BS,
        documents=tuple(spans),
        origins=(),
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    spans = []
    for row in range(ROWS):
        cuts = sorted(draw(st.sets(st.integers(0, ROW_TOKENS), min_size=2, max_size=6)))
        spans += [Span(row, start, stop) for start, stop in pairwise(cuts) if draw(st.booleans())]
    bits = draw(st.lists(st.booleans(), min_size=ROWS * ROW_TOKENS, max_size=ROWS * ROW_TOKENS))
    return batch_of(spans, np.array(bits).reshape(ROWS, ROW_TOKENS), seed=draw(st.integers(0, 99)))


def model() -> Decoder:
    decoder = tiny_model().build(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return decoder


def plain_loss(decoder: Decoder, batch: Batch) -> Tensor:
    """Return the loss document by document, through every layer and the whole head."""
    total = torch.zeros(())
    for span in batch.documents:
        place = (span.row, slice(span.start, span.stop))
        logits_SV = decoder(torch.from_numpy(batch.tokens_BS[place])[None])[0]
        losses_S = F.cross_entropy(logits_SV, torch.from_numpy(batch.targets_BS[place]), reduction="none")
        total = total + losses_S[torch.from_numpy(batch.loss_mask_BS[place])].sum()
    return total


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(batches())
def test_loss_and_gradients_equal_the_plain_computation(batch: Batch) -> None:
    decoder = model()
    losses = NextToken()(decoder, batch)
    assert losses.count == batch.num_targets
    if losses.count == 0:
        assert losses.total.item() == 0
        return
    torch.testing.assert_close(losses.total, plain_loss(decoder, batch), rtol=1e-5, atol=1e-5)
    parameters = list(decoder.parameters())
    found = torch.autograd.grad(losses.total, parameters)
    wanted = torch.autograd.grad(plain_loss(decoder, batch), parameters)
    for gradient, reference in zip(found, wanted, strict=True):
        assert (gradient - reference).norm() <= 1e-5 * (1 + reference.norm())


def test_documents_of_a_row_do_not_attend_to_each_other() -> None:
    """Changing every token of its neighbors leaves the loss of a document bit-identical."""
    decoder = model()
    spans = [Span(0, 0, 7), Span(0, 7, 15), Span(0, 15, 24), Span(1, 2, 20)]
    mask_BS = np.zeros((ROWS, ROW_TOKENS), dtype=bool)
    mask_BS[0, 7:15] = True
    batch = batch_of(spans, mask_BS, seed=3)
    before = NextToken()(decoder, batch).total
    inside = np.zeros_like(mask_BS)
    inside[0, 7:15] = True
    batch.tokens_BS[~inside] = batch.tokens_BS[~inside] % (VOCAB_SIZE - 1) + 1
    assert torch.equal(NextToken()(decoder, batch).total, before)
    batch.tokens_BS[0, 8] = batch.tokens_BS[0, 8] % (VOCAB_SIZE - 1) + 1
    assert not torch.equal(NextToken()(decoder, batch).total, before)


def test_layers_without_keys_and_values_run_for_positions_that_carry_loss_only() -> None:
    decoder = model()  # layers 0 and 1 store keys and values; layer 1 is read for nothing else
    seen: list[int] = []
    for layer in decoder.layers:
        layer.feed_forward.register_forward_hook(lambda _, args, __: seen.append(args[0].shape[:2].numel()))
    mask_BS = np.zeros((ROWS, ROW_TOKENS), dtype=bool)
    mask_BS[0, 3:6] = True
    losses = NextToken()(decoder, batch_of([Span(0, 0, 20), Span(1, 0, 24)], mask_BS, seed=0))
    assert losses.count == 3
    assert seen == [ROWS * ROW_TOKENS, 3, 3]


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_bf16_is_near_fp32(share: float) -> None:
    decoder = model()
    mask_BS = np.random.default_rng(5).random((ROWS, ROW_TOKENS)) < share
    batch = batch_of([Span(0, 0, 20), Span(1, 0, 24)], mask_BS, seed=0)
    exact = NextToken()(decoder, batch).total.item()
    decoder.compute_dtype = torch.bfloat16
    assert NextToken()(decoder, batch).total.item() == pytest.approx(exact, rel=0.02)
