"""The state of a run: averages, snapshots, weight decay."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import tiny_model

from openafm.training.config import EMAConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig, OptimizerConfig
from openafm.training.state import PreparedModel, TrainingState

OPTIMIZERS = (AdamWConfig(learning_rate=1e-2), MuonConfig(learning_rate=1e-2))


def tiny_state(optimizer: OptimizerConfig = OPTIMIZERS[0], ema: EMAConfig | None = None, seed: int = 0) -> TrainingState:
    return TrainingState(PreparedModel(model=tiny_model().build(seed)), optimizer, ema, num_steps=10)


def step(state: TrainingState) -> None:
    """Do a step with random gradients from torch's generator."""
    for parameter in state.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for optimizer in state.optimizers:
        optimizer.step()
    state.step += 1
    state.update_ema()


def test_the_average_follows_its_formula() -> None:
    state = tiny_state(ema=EMAConfig(decay=0.25))
    weight = state.model.norm.weight
    expected = weight.detach().double().clone()
    for update in (1, 2, 3, 4, 5):
        step(state)
        decay = min(0.25, update / (update + 9))
        expected = decay * expected + (1 - decay) * weight.detach().double()
    assert state.ema is not None
    torch.testing.assert_close(state.ema["norm.weight"].double(), expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(state.ema["norm.weight"], weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda config: type(config).__name__)
def test_a_restored_state_continues_bit_identically(optimizer: OptimizerConfig) -> None:
    torch.manual_seed(5)
    state = tiny_state(optimizer, EMAConfig())
    step(state)
    state.num_tokens, state.seconds = 123, 4.5
    snapshot = state.snapshot()
    for _ in range(2):
        step(state)
    other = tiny_state(optimizer, EMAConfig(), seed=9)
    other.restore(snapshot)
    assert (other.step, other.num_steps, other.num_tokens, other.seconds) == (1, 10, 123, 4.5)
    for _ in range(2):
        step(other)
    wanted, found = state.snapshot().tensors, other.snapshot().tensors
    assert wanted.keys() == found.keys() == {"model", "optimizer", "random", "ema"}
    for group, tensors in wanted.items():
        assert all(torch.equal(tensor, found[group][name]) for name, tensor in tensors.items())


def test_a_snapshot_does_not_change_with_the_state() -> None:
    state = tiny_state(ema=EMAConfig())
    step(state)
    snapshot = state.snapshot()
    before = {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in snapshot.tensors.items()}
    step(state)
    for group, tensors in before.items():
        assert all(torch.equal(tensor, snapshot.tensors[group][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda config: type(config).__name__)
def test_norms_do_not_decay(optimizer: OptimizerConfig) -> None:
    groups = [group for opt in tiny_state(optimizer).optimizers for group in opt.param_groups]
    assert {group["weight_decay"] for group in groups if group["params"][0].ndim == 1} == {0.0}
    assert any(group["weight_decay"] > 0 for group in groups)
    assert sum(len(group["params"]) for group in groups) == len(list(tiny_model().build().parameters()))
