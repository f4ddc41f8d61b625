"""Win rates from judgments: with intervals, by language and group, and with the effect of length removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from openafm.evaluation.harness.statistics import NUM_RESAMPLES, Estimate, estimate
from openafm.evaluation.judged.judge import Judgment

FEW_TIES = 0.5
"""Above this share of ties the judge does not separate the models."""
LEAST_FOR_LENGTH = 20
"""Fewer judgments do not determine the effect of length."""


@dataclass(frozen=True, kw_only=True)
class WinRate:
    """How often b is preferred over a.

    Attributes:
        rate: the mean share of b, with its standard error.
        low, high: the 95 % interval of a bootstrap over prompts.
        length_controlled: the rate for answers of equal length; None for few judgments.
        ties: the share of judgments with equal shares.
        consistency: the share of judgments whose orders agree.
        num_nonsense: judgments without a verdict; they are in no rate.
    """

    rate: Estimate
    low: float
    high: float
    length_controlled: float | None
    ties: float
    consistency: float
    num_nonsense: int

    @property
    def notes(self) -> list[str]:
        """What makes the rate doubtful."""
        notes = []
        if self.ties > FEW_TIES:
            notes.append(f"{self.ties:.0%} of the judgments are ties: the judge does not separate these answers")
        if self.consistency < 0.5:
            notes.append(f"only {self.consistency:.0%} of the judgments agree when the places are swapped")
        if self.num_nonsense > self.rate.count:
            notes.append(f"{self.num_nonsense} replies have no verdict; use a stronger judge")
        return notes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"notes": self.notes}


def win_rates(judgments: Sequence[Judgment]) -> Mapping[str, WinRate | None]:
    """Return the win rate of `all` and of each language and group; None where no reply had a verdict."""
    parts: defaultdict[str, list[Judgment]] = defaultdict(list)
    for judgment in judgments:
        parts["all"].append(judgment)
        parts[f"language {judgment.language}"].append(judgment)
        if judgment.group:
            parts[f"group {judgment.group}"].append(judgment)
    return {name: win_rate(found) for name, found in parts.items()}


def win_rate(judgments: Sequence[Judgment], seed: int = 0) -> WinRate | None:
    """Return the win rate of b over a; None if no judgment has a verdict."""
    valid = [judgment for judgment in judgments if judgment.score is not None]
    if not valid:
        return None
    shares = np.asarray([judgment.score for judgment in valid], np.float64)
    generator = np.random.default_rng(seed)
    means = [shares[generator.integers(len(shares), size=len(shares))].mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return WinRate(
        rate=estimate(list(shares)),
        low=float(low),
        high=float(high),
        length_controlled=length_controlled(valid),
        ties=float(np.mean(shares == 0.5)),
        consistency=sum(judgment.is_consistent for judgment in valid) / len(valid),
        num_nonsense=len(judgments) - len(valid),
    )


def length_controlled(judgments: Sequence[Judgment]) -> float | None:
    """Return the share of b for answers of equal length, by logistic regression on the difference of lengths.

    As in length-controlled AlpacaEval: share = sigmoid(intercept + slope * tanh(difference / its deviation)), at difference
    0. A small ridge keeps the slope finite where length separates all judgments.
    """
    if len(judgments) < LEAST_FOR_LENGTH:
        return None
    shares = np.asarray([judgment.score for judgment in judgments], np.float64)
    differences = np.asarray([judgment.lengths[1] - judgment.lengths[0] for judgment in judgments], np.float64)
    spread = differences.std()
    features = np.stack([np.ones_like(shares), np.tanh(differences / spread) if spread else np.zeros_like(shares)], axis=1)
    ridge, weights = np.diag([1e-6, 1e-2]) * len(shares), np.zeros(2)
    for _ in range(50):  # Newton steps
        predicted = 1 / (1 + np.exp(-features @ weights))
        gradient = features.T @ (shares - predicted) - ridge @ weights
        curvature = features.T @ (features * (predicted * (1 - predicted))[:, None]) + ridge
        step = np.linalg.solve(curvature, gradient)
        weights += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-8:
            break
    return float(1 / (1 + np.exp(-weights[0])))
