"""Batches of the policy updater: advantages, packing, stale and dropped samples."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_buffer import trajectory

from openafm.models.attention.spans import Span
from openafm.rl.batches import StepBatch, repetition, step_batch
from openafm.rl.packing import RowLengthError
from openafm.rl.trajectories import Group, Trajectory
from openafm.training.objectives.policy_config import RLOOConfig


def groups(*of_prompt: list[Trajectory]) -> list[Group]:
    return [Group(number=number, trajectories=tuple(each), tokenizer="abc") for number, each in enumerate(of_prompt)]


def batch(of: list[Group], *, kl_weight: float = 0.0, step: int = 0, lag: int = 2, row_tokens: int = 16) -> StepBatch:
    size = max(len(group.trajectories) for group in of)
    objective = RLOOConfig(kl_weight=kl_weight)
    return step_batch(of, objective, group_size=size, step=step, lag=lag, row_tokens=row_tokens)


def test_samples_of_a_prompt_are_branches_with_their_advantages() -> None:
    found = batch(groups([trajectory(reward=1.0), trajectory(reward=0.0, length=5)])).batch
    assert found.tokens_BS.tolist() == [[5, 6, 10, 11, 6, 10, 11, 12, 13]]
    assert found.targets_BS[0, 1:].tolist() == [10, 11, 12, 10, 11, 12, 13, 14]
    assert found.loss_mask_BS[0].tolist() == [False] + [True] * 8
    assert found.token_fields["advantages"][0, 1:].tolist() == [1.0] * 3 + [-1.0] * 5
    assert found.token_fields["behavior_log_probs"][0, [1, 8]].tolist() == [-0.5, -0.5]
    assert found.documents == (Span(0, 0, 9),)
    assert found.branches == (Span(0, 1, 4), Span(0, 4, 9))
    assert found.num_real_tokens == 9


def test_samples_that_do_not_fit_one_row_repeat_their_prompt() -> None:
    found = batch(groups([trajectory(length=length) for length in (9, 4, 2)]), row_tokens=14).batch
    assert found.documents == (Span(0, 0, 14), Span(1, 0, 3))
    assert found.branches == (Span(0, 1, 10), Span(0, 10, 14), Span(1, 1, 3))
    assert found.tokens_BS[1].tolist() == [5, 6, 10] + [0] * 11
    assert found.rows(1, 2).branches == (Span(0, 1, 3),)


def test_rows_are_as_wide_as_wastes_the_fewest_positions() -> None:
    prompts = [[replace(trajectory(length=5), prompt_tokens=(number, 6))] for number in range(4)]  # 6 positions each
    found = batch(groups(*prompts), row_tokens=20).batch
    assert found.tokens_BS.shape == (2, 12)
    assert found.num_real_tokens == 24


def test_the_divergence_is_part_of_the_reward() -> None:
    found = batch(groups([trajectory(length=3), trajectory(length=5)]), kl_weight=0.1).batch
    spread = 0.1 * (5 - 3) * 0.25  # nats of the longer sample beyond those of the shorter one
    assert sorted(set(found.token_fields["advantages"][found.loss_mask_BS].round(6))) == pytest.approx([-spread, spread])


def test_rounding_of_the_divergence_gives_no_gradient() -> None:
    found = batch(groups([trajectory(length=3), trajectory(length=5)]), kl_weight=1e-6).batch
    assert not found.token_fields["advantages"].any()


def test_every_sample_is_counted_once() -> None:
    old, broken = trajectory(version=0), trajectory(error="time limit")
    of = groups([trajectory(version=3), old, broken, trajectory(version=1)], [trajectory(version=3)])
    figures = batch(of, step=3).figures
    assert (figures.trained, figures.stale, figures.dropped) == (3, 1, 1 + 3)
    assert figures.errors == {"time limit": 1, "not generated": 3}
    assert (figures.max_lag, figures.lag) == (2, pytest.approx(2 / 3))
    assert figures.equal_groups == 1.0


def test_stale_tokens_are_marked_and_no_sample_gives_an_empty_batch() -> None:
    found = batch(groups([trajectory(version=3), trajectory(version=2)]), step=3).batch
    is_off_policy = {bool(value) for value in found.token_fields["is_off_policy"][found.loss_mask_BS]}
    assert is_off_policy == {True, False}
    assert batch(groups([trajectory(error="x"), trajectory(error="x")])).batch.num_rows == 0


def test_samples_longer_than_a_row_are_an_error() -> None:
    with pytest.raises(RowLengthError, match=r"does not fit rows of 16; raise trainer\.data\.row_tokens"):
        batch(groups([trajectory(length=30)]))


def test_repetition_counts_repeated_fourgrams() -> None:
    assert repetition([1, 2, 3, 4, 5, 6]) == 0
    assert repetition([1] * 8) == pytest.approx(0.8)
    assert repetition([1, 2]) == 0
