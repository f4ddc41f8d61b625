"""Exact match of the final answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openafm.rl.rewards.base import Reward, RewardConfig
from openafm.rl.trajectories import Sample, Score


@dataclass(frozen=True, kw_only=True)
class ExactMatchConfig(RewardConfig):
    """1 if the text of the answer equals `truth["answer"]`, white space at both ends aside; else 0."""

    def build(self) -> Reward:
        return _exact_match


def _exact_match(samples: Sequence[Sample]) -> list[Score]:
    return [_score(sample) for sample in samples]


def _score(sample: Sample) -> Score:
    truth = sample.prompt.truth.get("answer")
    if not isinstance(truth, str):
        return Score(reward=0.0, error="the prompt has no string under truth.answer")
    is_equal = float(sample.text.strip() == truth.strip())
    return Score(reward=is_equal, terms={"exact": is_equal})
