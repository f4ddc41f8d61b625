"""From the groups of a step to the batch of the policy updater, with the figures of the step.

Shape suffixes: K samples of a group, N tokens of a sample after its prompt.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openafm.data.loading.batch import Batch
from openafm.rl.packing import ImageViews, packed
from openafm.rl.trajectories import Group, Trajectory
from openafm.training.objectives.policy_config import PolicyObjectiveConfig

_ROUNDING = 1e-5
"""Smaller advantages are rounding of the divergence from the reference; Adam would scale them to whole updates."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """What a step trains on. Means are over samples; those with an error and stale ones are left out.

    Attributes:
        trained, stale, dropped: numbers of samples. Dropped ones have no reward or could not be generated.
        equal_groups: share of the groups whose samples all have the same reward; they have no gradient.
        reward: mean reward without the KL divergence, `reward_std` its mean standard deviation within a group.
        terms: means of the terms of the rewards; `kinds` mean rewards by the kind of prompt.
        kl: mean divergence from the reference, in nats per sample.
        length: mean tokens of a sample; `truncated` is the share that the token limit ended.
        repetition: mean share of the 4-grams of a sample that occurred in it before.
        lag: mean over tokens of the number of updates since the weights that sampled them; `max_lag` the highest.
        errors: reasons of dropped samples with their numbers.
    """

    trained: int
    stale: int
    dropped: int
    equal_groups: float
    reward: float
    reward_std: float
    terms: dict[str, float]
    kinds: dict[str, float]
    kl: float
    length: float
    truncated: float
    repetition: float
    lag: float
    max_lag: int
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The batch of a step, and its figures."""

    batch: Batch
    figures: StepFigures


def step_batch(
    groups: Sequence[Group],
    objective: PolicyObjectiveConfig,
    *,
    group_size: int,
    step: int,
    lag: int,
    row_tokens: int,
    views: ImageViews | None = None,
    is_rounded: bool = False,
    rank: int = 0,
    world: int = 1,
) -> StepBatch:
    """Return the batch of update number `step`, counted from 0, with the samples rank, rank + world, ... of the groups.

    `views` returns the views of the images of prompts. If generators sampled with rounded weights (`is_rounded`), every
    token needs an importance weight.

    Raises:
        RowLengthError: a sample is longer than `row_tokens`.
    """
    trained: list[tuple[Trajectory, float]] = []
    errors: Counter[str] = Counter()
    spreads, num_stale, num_equal = [], 0, 0
    for group in groups:
        usable = [each for each in group.trajectories if not each.score.error]
        fresh = [each for each in usable if step - int(each.versions_N.min(initial=step)) <= lag]
        errors.update(each.score.error for each in group.trajectories if each.score.error)
        if missing := group_size - len(group.trajectories):
            errors[group.error or "not generated"] += missing
        num_stale += len(usable) - len(fresh)
        if not fresh:
            continue
        rewards_K = np.array([each.score.reward - objective.kl_weight * each.kl for each in fresh])
        advantages_K = objective.advantages(rewards_K)
        advantages_K[np.abs(advantages_K) < _ROUNDING] = 0.0
        trained += zip(fresh, advantages_K.tolist(), strict=True)
        plain = [each.score.reward for each in fresh]
        spreads.append(statistics.pstdev(plain))
        num_equal += max(plain) == min(plain)
    figures = _figures([each for each, _ in trained], step, num_stale, errors)
    return StepBatch(
        batch=packed(trained[rank::world], None if is_rounded else step, row_tokens, views),
        figures=StepFigures(
            **figures,
            equal_groups=num_equal / max(len(spreads), 1),
            reward_std=statistics.fmean(spreads) if spreads else 0.0,
        ),
    )


def _figures(trained: Sequence[Trajectory], step: int, num_stale: int, errors: Counter[str]) -> dict[str, Any]:
    by_kind: dict[str, list[float]] = {}
    terms: dict[str, list[float]] = {}
    for each in trained:
        by_kind.setdefault(each.sample.prompt.kind, []).append(each.score.reward)
        for name, value in each.score.terms.items():
            terms.setdefault(name, []).append(value)
    lags = [step - each.versions_N[each.loss_mask_N] for each in trained]
    all_lags = np.concatenate(lags) if lags else np.zeros(0)
    return {
        "trained": len(trained),
        "stale": num_stale,
        "dropped": errors.total(),
        "reward": _mean([each.score.reward for each in trained]),
        "terms": {name: _mean(values) for name, values in sorted(terms.items())},
        "kinds": {kind: _mean(values) for kind, values in sorted(by_kind.items())},
        "kl": _mean([each.kl for each in trained]),
        "length": _mean([len(each.tokens_N) for each in trained]),
        "truncated": _mean([each.sample.finish_reason == "length" for each in trained]),
        "repetition": _mean([repetition(each.tokens_N.tolist()) for each in trained]),
        "lag": float(all_lags.mean()) if len(all_lags) else 0.0,
        "max_lag": int(all_lags.max()) if len(all_lags) else 0,
        "errors": dict(errors),
    }


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of 4-grams that occurred before in the same sample."""
    grams = [tuple(tokens[start : start + 4]) for start in range(len(tokens) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
