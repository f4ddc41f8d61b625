"""Exact match of the final answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from openafm.rl.rewards.base import Reward, RewardConfig, failed, scored
from openafm.rl.trajectories import Sample, Score


@dataclass(frozen=True, kw_only=True)
class ExactMatchConfig(RewardConfig):
    """1 if the text of the answer equals `truth["answer"]`, white space at both ends aside; else 0.

    Attributes:
        partial: give half the share of equal characters instead of 0, in the order of the reference.
    """

    name: str = "exact"
    partial: bool = False

    def build(self) -> Reward:
        def score(samples: Sequence[Sample]) -> list[Score]:
            return [self._score(sample) for sample in samples]

        return score

    def _score(self, sample: Sample) -> Score:
        truth = sample.prompt.truth.get("answer")
        if not isinstance(truth, str):
            return failed(self.name, "the prompt has no text under truth.answer")
        answer, wanted = sample.text.strip(), truth.strip()
        if answer == wanted or not self.partial:
            return scored(self.name, float(answer == wanted))
        return scored(self.name, 0.5 * SequenceMatcher(None, answer, wanted, autojunk=False).ratio())
