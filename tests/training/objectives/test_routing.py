"""Routing losses against a direct computation, row by row and position by position.

Shapes: T tracks, E experts of a track, N positions, K experts chosen for each, B rows, S positions of a row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from openafm.core.config import ConfigError
from openafm.data.loading.batch import Batch
from openafm.models.attention.context import PackedDocuments
from openafm.models.attention.spans import Span
from openafm.models.config import DecoderConfig, DenseFeedForwardConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts import Routing, observed_routing
from openafm.models.sizes import parallel_track_decoder
from openafm.training.objectives.base import NextToken
from openafm.training.objectives.config import RoutingLossConfig
from openafm.training.objectives.routing import RoutingLosses, routing_losses

ROWS, ROW_TOKENS, VOCAB_SIZE, TRACKS, EXPERTS = 4, 12, 31, 2, 4
CONFIG = RoutingLossConfig(balance_weight=0.5, z_weight=0.25)
DOCUMENTS = (Span(0, 0, 12), Span(1, 2, 5), Span(1, 5, 9), Span(3, 0, 7))  # row 2 is padding throughout


def model_config() -> DecoderConfig:
    """Four layers, the second and the last with experts; the last runs only for positions that carry loss."""
    return parallel_track_decoder(
        vocab_size=VOCAB_SIZE,
        dim=16,
        num_tracks=TRACKS,
        num_layers=4,
        block_depth=2,
        num_heads=2,
        head_dim=8,
        window=4,
        dense_dim=24,
        num_experts=EXPERTS,
        expert_dim=8,
        context_length=32,
    )


def model() -> Decoder:
    torch.set_num_threads(1)
    decoder = model_config().build(seed=1)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "router" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(3))
    return decoder


def batch(seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    tokens_BS = generator.integers(1, VOCAB_SIZE, (ROWS, ROW_TOKENS))
    mask_BS = np.zeros((ROWS, ROW_TOKENS), dtype=bool)
    for row, start, stop in DOCUMENTS:
        mask_BS[row, start : stop - 1] = generator.random(stop - 1 - start) < 0.7
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=np.roll(tokens_BS, -1, axis=1),
        loss_mask_BS=mask_BS,
        documents=DOCUMENTS,
        origins=(None,) * len(DOCUMENTS),  # type: ignore[arg-type]
    )


def targets(batch: Batch) -> Tensor:
    return torch.from_numpy(batch.loss_mask_BS).flatten().nonzero()[:, 0]


def seen_routing(decoder: Decoder, batch: Batch) -> dict[int, Routing]:
    context = PackedDocuments(batch.documents, *batch.tokens_BS.shape)
    with observed_routing(decoder) as seen:
        decoder.hidden_at(torch.from_numpy(batch.tokens_BS), context, targets(batch))
    return seen


def losses_of(decoder: Decoder, batch: Batch) -> RoutingLosses:
    return routing_losses(CONFIG, decoder.config, seen_routing(decoder, batch), batch, targets(batch))


def direct(decoder: Decoder, batch: Batch) -> tuple[float, float]:
    """Balance and z loss by their definitions."""
    seen = seen_routing(decoder, batch)
    real = [(span.row, at) for span in batch.documents for at in range(span.start, span.stop)]
    carrying = [(int(i) // ROW_TOKENS, int(i) % ROW_TOKENS) for i in targets(batch)]
    balance = z = 0.0
    for layer, routing in seen.items():
        for track in range(TRACKS):
            for row in range(len(batch.tokens_BS)):
                if layer == 3:  # received only the positions that carry loss
                    places = [i for i, (r, _) in enumerate(carrying) if r == row]
                else:
                    places = [r * ROW_TOKENS + at for r, at in real if r == row]
                if not places:
                    continue
                logits_NE = routing.logits_TNE[track, places].detach().double()
                chosen = routing.chosen_TNK[track, places]
                weight = int(batch.loss_mask_BS[row].sum()) / (len(seen) * TRACKS)
                shares = [float((chosen == e).sum()) / chosen.numel() for e in range(EXPERTS)]
                means = logits_NE.softmax(-1).mean(0).tolist()
                balance += weight * EXPERTS * sum(a * b for a, b in zip(shares, means, strict=True))
                z += weight * float(torch.log(logits_NE.exp().sum(-1)).square().mean())
    return balance, z


def test_equal_their_definitions() -> None:
    decoder = model()
    losses = losses_of(decoder, batch())
    balance, z = direct(decoder, batch())
    assert losses.parts["expert_balance"].item() == pytest.approx(balance, rel=1e-5)
    assert losses.parts["router_z"].item() == pytest.approx(z, rel=1e-5)
    assert losses.total.item() == pytest.approx(0.5 * balance + 0.25 * z, rel=1e-5)


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_do_not_depend_on_microbatches(num_rows: int) -> None:
    decoder, whole = model(), batch()
    routers = [p for name, p in decoder.named_parameters() if "router" in name]
    wanted = losses_of(decoder, whole)
    wanted_gradients = torch.autograd.grad(wanted.total, routers)
    pieces = [losses_of(decoder, piece) for piece in whole.microbatches(num_rows) if piece.num_targets]
    total = torch.stack([piece.total for piece in pieces]).sum()
    torch.testing.assert_close(total, wanted.total)
    for found, gradient in zip(torch.autograd.grad(total, routers), wanted_gradients, strict=True):
        torch.testing.assert_close(found, gradient)
    for layer, tokens_TE in wanted.tokens_TE.items():
        assert torch.equal(sum(piece.tokens_TE[layer] for piece in pieces), tokens_TE)  # type: ignore[arg-type]


def test_padding_does_not_count() -> None:
    decoder, before = model(), batch()
    is_real_BS = np.zeros_like(before.loss_mask_BS)
    for span in DOCUMENTS:
        is_real_BS[span.row, span.start : span.stop] = True
    after = replace(before, tokens_BS=np.where(is_real_BS, before.tokens_BS, before.tokens_BS % (VOCAB_SIZE - 1) + 1))
    assert not np.array_equal(before.tokens_BS, after.tokens_BS)
    assert losses_of(decoder, before).total.item() == losses_of(decoder, after).total.item()


def test_counts_are_the_tokens_of_each_expert() -> None:
    tokens_TE = losses_of(model(), batch()).tokens_TE
    num_real = sum(span.stop - span.start for span in DOCUMENTS)
    assert {layer: counts.shape for layer, counts in tokens_TE.items()} == {1: (TRACKS, EXPERTS), 3: (TRACKS, EXPERTS)}
    assert tokens_TE[1].sum(1).tolist() == [2 * num_real] * TRACKS
    assert tokens_TE[3].sum(1).tolist() == [2 * batch().num_targets] * TRACKS


def uniform(logits: Tensor, chosen: list[list[int]]) -> RoutingLosses:
    """Return the losses of one row in which every position carries loss, with one expert layer and no tracks."""
    num_positions = len(chosen)
    mask_BS = np.ones((1, num_positions), dtype=bool)
    row = Batch(
        tokens_BS=mask_BS.astype(np.int64),
        targets_BS=mask_BS.astype(np.int64),
        loss_mask_BS=mask_BS,
        documents=(Span(0, 0, num_positions),),
        origins=(),
    )
    config = replace(model_config(), tracks=None)
    chosen_TNK = torch.tensor(chosen)[None]
    routing = Routing(logits_TNE=logits, chosen_TNK=chosen_TNK, weights_TNK=torch.ones(chosen_TNK.shape) / 2)
    return routing_losses(CONFIG, config, {1: routing}, row, torch.arange(num_positions))


def test_even_routing_has_a_balance_loss_of_one() -> None:
    losses = uniform(torch.zeros(1, 4, EXPERTS), [[0, 1], [2, 3], [1, 2], [3, 0]])
    assert losses.parts["expert_balance"].item() / 4 == pytest.approx(1.0)
    assert losses.parts["router_z"].item() / 4 == pytest.approx(np.log(EXPERTS) ** 2)


def test_the_worst_routing_has_a_balance_loss_of_experts_per_choice() -> None:
    logits = torch.full((1, 4, EXPERTS), -40.0)
    logits[..., :2] = 40.0
    assert uniform(logits, [[0, 1]] * 4).parts["expert_balance"].item() / 4 == pytest.approx(EXPERTS / 2)


def test_the_gradient_pushes_the_router_away_from_a_crowded_expert() -> None:
    logits = torch.zeros(1, 4, EXPERTS, requires_grad=True)
    balance_only = uniform(logits, [[0, 1], [0, 2], [0, 3], [0, 1]]).total
    (gradient,) = torch.autograd.grad(balance_only, logits)
    assert (gradient[..., 0] > gradient[..., 1:].amax(-1)).all()


def test_the_objective_adds_them_and_every_router_gets_a_gradient() -> None:
    decoder, whole = model(), batch()
    plain = NextToken(RoutingLossConfig(balance_weight=0.0, z_weight=0.0))(decoder, whole)
    losses = NextToken(CONFIG)(decoder, whole)
    torch.testing.assert_close(losses.total - plain.total, losses_of(decoder, whole).total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses.parts["cross_entropy"], plain.total.detach())
    routers = [p for name, p in decoder.named_parameters() if "router" in name]
    for gradient in torch.autograd.grad(losses_of(decoder, whole).total, routers):
        assert gradient.flatten(1).any(1).all()


def test_a_model_without_experts_has_none() -> None:
    config = model_config()
    dense = tuple(replace(layer, feed_forward=DenseFeedForwardConfig(hidden_dim=8)) for layer in config.layers)
    losses = NextToken(CONFIG)(replace(config, layers=dense).build(), batch())
    assert losses.parts == {}
    assert losses.expert_tokens == {}


@pytest.mark.parametrize("wrong", [{"balance_weight": -0.1}, {"z_weight": -1.0}])
def test_negative_weights_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be at least 0"):
        RoutingLossConfig(**wrong)
