"""Upcycling: the same function at step 0, the report's size, and refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

from openafm.core.config import ConfigError
from openafm.models.accounting import active_parameters, num_parameters
from openafm.models.attention.context import PackedDocuments
from openafm.models.config import DecoderConfig, DenseFeedForwardConfig, TracksConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts import Experts, Router, Routing, TopKRouter
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.models.initialization.upcycling import upcycle
from openafm.models.initialization.upcycling_config import (
    PartlyFreshExperts,
    UpcyclingConfig,
    UpcyclingError,
    upcycled_config,
)
from openafm.models.sizes import named_size

EIGHT = UpcyclingConfig(num_experts=8)
DENSE = decoder_config(layer(), layer(window=4), layer(), layer(source=2))


def outputs(model: Decoder) -> Tensor:
    tokens_BS = random_tokens(NUM_ROWS, ROW_LENGTH)
    return model(tokens_BS, PackedDocuments(DOCUMENTS, NUM_ROWS, ROW_LENGTH, torch.device("cpu")))


def experts_of(model: Decoder) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


@dataclass(frozen=True, kw_only=True)
class ShareOfAllConfig(TopKRouterConfig):
    """The softmax over all experts, not renormalized over the chosen ones: their weights do not add up to 1."""

    def build(self, dim: int, num_experts: int) -> Router:
        return ShareOfAll(self, dim, num_experts)


class ShareOfAll(TopKRouter):
    def choose(self, logits_TNE: Tensor) -> Routing:
        routing = super().choose(logits_TNE)
        weights_TNK = routing.logits_TNE.softmax(-1).gather(-1, routing.chosen_TNK)
        return replace(routing, weights_TNK=weights_TNK)


def step_0_difference(dense: DecoderConfig, upcycling: UpcyclingConfig) -> float:
    model = perturbed(dense)
    with torch.no_grad():
        return largest_difference(outputs(model), outputs(upcycle(model, upcycling, seed=5)))


@pytest.mark.parametrize("num_chosen", [1, 2, 3])
def test_the_upcycled_model_computes_what_the_dense_one_does(num_chosen: int) -> None:
    assert step_0_difference(DENSE, replace(EIGHT, router=TopKRouterConfig(num_chosen=num_chosen))) <= 1e-5


def test_so_do_tracks() -> None:
    tracks = replace(DENSE, tracks=TracksConfig(num_tracks=2, block_depth=2))
    assert step_0_difference(tracks, EIGHT) <= 1e-5


def test_weights_that_do_not_add_up_to_1_fail_the_same_test() -> None:
    assert step_0_difference(DENSE, replace(EIGHT, router=ShareOfAllConfig())) > 0.1


def test_only_every_second_layer_has_experts_and_routers_are_new() -> None:
    dense = perturbed(DENSE)
    one, other = (upcycle(dense, EIGHT, seed=seed) for seed in (0, 1))
    kinds = [type(layer.feed_forward) for layer in one.config.layers]
    assert kinds == [DenseFeedForwardConfig, ExpertsConfig] * 2
    for mine, theirs in zip(experts_of(one), experts_of(other), strict=True):
        assert torch.equal(mine.down, theirs.down)
        assert not torch.equal(mine.router.weight, theirs.router.weight)
        assert 0.01 < mine.router.weight.std() < 0.03
    first, second = experts_of(one)
    assert not torch.equal(first.router.weight, second.router.weight)
    again = upcycle(dense, EIGHT, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))


def test_the_dense_model_is_left_alone() -> None:
    dense = perturbed(DENSE)
    before = {name: weight.clone() for name, weight in dense.state_dict().items()}
    upcycled = upcycle(dense, EIGHT)
    with torch.no_grad():
        for parameter in upcycled.parameters():
            parameter.add_(1)
    assert all(torch.equal(weight, before[name]) for name, weight in dense.state_dict().items())


def test_partly_fresh_experts_forget_their_share_of_whole_units() -> None:
    dense = perturbed(DENSE)
    model = upcycle(dense, replace(EIGHT, experts=PartlyFreshExperts(share=0.25)))
    gate_FD = dense.state_dict()["layers.1.feed_forward.gate.weight"]
    down_DF = dense.state_dict()["layers.1.feed_forward.down.weight"]
    experts = experts_of(model)[0]
    changed_EF = (experts.gate != gate_FD).all(-1)
    assert torch.equal(changed_EF, (experts.gate != gate_FD).any(-1))
    assert torch.equal(changed_EF, (experts.down != down_DF).all(-2))
    assert torch.equal(changed_EF, (experts.down != down_DF).any(-2))
    assert changed_EF.sum(-1).tolist() == [12] * 8
    assert len({tuple(row) for row in changed_EF.tolist()}) > 1
    fresh, old = experts.gate[changed_EF], gate_FD.expand_as(experts.gate)[changed_EF]
    torch.testing.assert_close(fresh.std(), old.std(), rtol=0.1, atol=0)


def test_the_reports_teacher_on_the_meta_device() -> None:
    """Report 4.3: 64 experts on 28 of the 56 layers of the 3 B model."""
    teacher = upcycled_config(named_size("on_device.base"), UpcyclingConfig())
    assert sum(isinstance(layer.feed_forward, ExpertsConfig) for layer in teacher.layers) == 28
    assert num_parameters(teacher) == 75_252_872_576
    assert active_parameters(teacher) == 4_260_083_072


def test_what_cannot_be_upcycled() -> None:
    with pytest.raises(UpcyclingError, match="layer 1 has a ExpertsConfig"):
        upcycled_config(upcycled_config(DENSE, EIGHT), EIGHT)
    biased = replace(layer(), feed_forward=DenseFeedForwardConfig(hidden_dim=48, bias=True))
    with pytest.raises(UpcyclingError, match="layer 1 has biases"):
        upcycled_config(decoder_config(layer(), biased), EIGHT)
    with pytest.raises(ConfigError, match="2 experts are fewer than the 3"):
        upcycled_config(DENSE, UpcyclingConfig(num_experts=2, router=TopKRouterConfig(num_chosen=3)))
