"""From the groups of a step to the batch of the policy updater, with the figures of the step.

Shape suffixes: B rows, S tokens of a row, K samples of a group, N tokens of a sample after its prompt, V vocabulary.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from openafm.core.errors import OpenAFMError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import EmbeddingSpan, ImageKey, Span
from openafm.rl.trajectories import Group, Trajectory
from openafm.training.objectives.policy_config import PolicyObjectiveConfig

_ROUNDING = 1e-5
"""Smaller advantages are rounding of the divergence from the reference; Adam would scale them to whole updates."""


class RowLengthError(OpenAFMError):
    """A sample with its prompt is longer than a row of the trainer."""


ImageViews: TypeAlias = Callable[[ImageKey], npt.NDArray[np.uint8]]
"""Returns the views [V, side, side, 3] of an image in one resolution mode."""


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
        batch=_packed(trained[rank::world], None if is_rounded else step, row_tokens, views),
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


def _packed(
    samples: Sequence[tuple[Trajectory, float]], present: int | None, row_tokens: int, views: ImageViews | None
) -> Batch:
    """Pack samples into rows: each in the first row with room for it, the longest first.

    `present` is the version of the weights whose tokens are on-policy; None if no token is.
    """
    rows: list[list[tuple[Trajectory, float]]] = []
    lengths: list[int] = []
    for sample in sorted(samples, key=lambda pair: -_length(pair[0])):
        length = _length(sample[0])
        if length > row_tokens:
            raise RowLengthError(
                f"a sample of {length} tokens with its prompt does not fit rows of {row_tokens}; raise"
                " trainer.data.row_tokens, lower max_tokens or shorten the prompts"
            )
        row = next((row for row, used in enumerate(lengths) if used + length <= row_tokens), len(rows))
        if row == len(rows):
            rows.append([])
            lengths.append(0)
        rows[row].append(sample)
        lengths[row] += length
    return _batch(rows, max(lengths, default=1), present, views)


def one_row(trajectories: Sequence[Trajectory], views: ImageViews | None = None) -> Batch:
    """Return a batch of one row with the samples in order and without advantages, to compute log-probabilities."""
    return _batch([[(each, 0.0) for each in trajectories]], sum(map(_length, trajectories)), 0, views)


def _length(trajectory: Trajectory) -> int:
    return len(trajectory.prompt_tokens) + len(trajectory.tokens_N)


def _batch(rows: list[list[tuple[Trajectory, float]]], width: int, present: int | None, views: ImageViews | None) -> Batch:
    shape = (len(rows), width)
    tokens_BS, targets_BS = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    loss_mask_BS, is_off_policy_BS = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    advantages_BS, behavior_BS = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    support_BSV = _empty_support(rows, shape)
    documents, spans = [], list[EmbeddingSpan]()
    for row, samples in enumerate(rows):
        start = 0
        for each, advantage in samples:
            stop = start + _length(each)
            answer = slice(start + len(each.prompt_tokens) - 1, stop - 1)  # the targets of these positions are the answer
            tokens_BS[row, start:stop] = [*each.prompt_tokens, *each.tokens_N.tolist()]
            targets_BS[row, start : stop - 1] = tokens_BS[row, start + 1 : stop]
            loss_mask_BS[row, answer] = each.loss_mask_N
            advantages_BS[row, start:stop] = advantage
            behavior_BS[row, answer] = each.log_probs_N
            is_off_policy_BS[row, answer] = True if present is None else each.versions_N < present
            if support_BSV is not None and each.support_NV is not None:
                support_BSV[row, answer] = each.support_NV
            documents.append(Span(row, start, stop))
            spans += [EmbeddingSpan(row, start + image.start, start + image.stop, image.digest) for image in each.images]
            start = stop
    fields: dict[str, npt.NDArray[Any]] = {
        "advantages": advantages_BS,
        "behavior_log_probs": behavior_BS,
        "is_off_policy": is_off_policy_BS,
    }
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=targets_BS,
        loss_mask_BS=loss_mask_BS,
        documents=tuple(documents),
        token_fields=fields if support_BSV is None else fields | {"support": support_BSV},
        embedding_spans=tuple(spans),
        images={} if views is None else {span.image: views(span.image) for span in spans},
    )


def _empty_support(rows: list[list[tuple[Trajectory, float]]], shape: tuple[int, int]) -> npt.NDArray[np.uint8] | None:
    """Return a mask that allows all tokens; None if no sample has a grammar."""
    masks = (each.support_NV for samples in rows for each, _ in samples if each.support_NV is not None)
    first = next(masks, None)
    return None if first is None else np.full((*shape, first.shape[1]), 0xFF, np.uint8)
