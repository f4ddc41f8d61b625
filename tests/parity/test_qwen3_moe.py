"""Our decoder with experts equals transformers' Qwen3Moe in fp32: routing, dispatch, and generation with a cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from peers import (
    HEAD_DIM,
    NUM_LAYERS,
    POWER,
    TOLERANCE,
    copy_to_ours,
    copy_to_peer,
    decoder,
    layer,
    perturb,
    transformers_pairs,
)
from test_generation import our_answer, their_answer
from test_transformers import COMMON, HALF, difference
from torch import Tensor

from openafm.models.config import LayerConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts import Routing, TopKRouter
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig

transformers = pytest.importorskip("transformers")

NUM_EXPERTS, NUM_CHOSEN, EXPERT_DIM = 8, 2, 32


@pytest.fixture(autouse=True)
def _one_thread_no_grad() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def qwen3_moe(renormalized: bool = True) -> Any:
    """Every second layer sparse."""
    config = transformers.Qwen3MoeConfig(
        **COMMON,
        head_dim=HEAD_DIM,
        moe_intermediate_size=EXPERT_DIM,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=NUM_CHOSEN,
        decoder_sparse_step=2,
        norm_topk_prob=renormalized,
    )
    return transformers.Qwen3MoeForCausalLM(config).eval()


def layers(router: TopKRouterConfig) -> list[LayerConfig]:
    dense = layer(**HALF)
    sparse = replace(dense, feed_forward=ExpertsConfig(num_experts=NUM_EXPERTS, hidden_dim=EXPERT_DIM, router=router))
    return [dense, sparse] * (NUM_LAYERS // 2)


UNCAPPED = TopKRouterConfig(num_chosen=NUM_CHOSEN, soft_cap=None)


def with_weights_of(ours: Decoder, router: TopKRouterConfig) -> Decoder:
    other = decoder(layers(router))
    other.load_state_dict(ours.state_dict())
    return other


def test_experts_equal_qwen3_moe_s_with_weights_copied_either_way() -> None:
    ours, theirs = decoder(layers(UNCAPPED)), qwen3_moe()
    copy_to_peer(transformers_pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE
    perturb(theirs, seed=1)
    assert difference(ours, theirs) > POWER
    copy_to_ours(transformers_pairs(ours, theirs))
    assert difference(ours, theirs) < TOLERANCE


def test_the_pairs_name_every_weight_of_both_once() -> None:
    ours, theirs = decoder(layers(UNCAPPED)), qwen3_moe()
    paired = list(transformers_pairs(ours, theirs))
    for side, model in enumerate((ours, theirs)):
        assert sum(pair[side].numel() for pair in paired) == sum(parameter.numel() for parameter in model.parameters())


def test_the_comparison_sees_one_rule_of_routing_broken() -> None:
    ours, theirs = decoder(layers(UNCAPPED)), qwen3_moe()
    copy_to_peer(transformers_pairs(ours, theirs))
    assert difference(with_weights_of(ours, replace(UNCAPPED, num_chosen=1)), theirs) > POWER
    assert difference(with_weights_of(ours, replace(UNCAPPED, num_chosen=3)), theirs) > POWER
    assert difference(with_weights_of(ours, replace(UNCAPPED, soft_cap=1.0)), theirs) > POWER
    unnormalized = qwen3_moe(renormalized=False)
    copy_to_peer(transformers_pairs(ours, unnormalized))
    assert difference(ours, unnormalized) > POWER


def test_the_soft_cap_bounds_logits_and_evens_weights_but_keeps_the_choice() -> None:
    router = TopKRouter(TopKRouterConfig(soft_cap=50.0), dim=4, num_experts=NUM_EXPERTS)
    uncapped = TopKRouter(UNCAPPED, dim=4, num_experts=NUM_EXPERTS)
    logits_TNE = 60 * torch.randn(2, 100, NUM_EXPERTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def largest_weights(routing: Routing) -> Tensor:
        return routing.weights_TNK[..., 0]

    capped, free = router.choose(logits_TNE), uncapped.choose(logits_TNE)
    assert torch.equal(capped.chosen_TNK, free.chosen_TNK)
    assert capped.logits_TNE.abs().max() < 50
    assert (largest_weights(capped) <= largest_weights(free)).all()


def test_experts_generate_what_qwen3_moe_does() -> None:
    ours = decoder(layers(UNCAPPED))
    expected = their_answer(ours, qwen3_moe())
    assert len(set(expected)) > 3, "an answer of one repeated token proves little"
    assert our_answer(ours) == expected
