"""A weighted sum of rewards, as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from openafm.core.config import Config
from openafm.rl.rewards.base import Reward, RewardConfig, failed, sample_digest
from openafm.rl.rewards.cache import ScoreCache
from openafm.rl.trajectories import Sample, Score


@dataclass(frozen=True, kw_only=True)
class TermConfig(Config):
    """A reward and its weight in a sum. The reward's `kinds` select the prompts that it counts for."""

    reward: RewardConfig
    weight: float = 1.0

    def __post_init__(self) -> None:
        self.require(math.isfinite(self.weight), f"weight must be finite, got {self.weight}")


@dataclass(frozen=True, kw_only=True)
class SumConfig(RewardConfig):
    """The sum of the terms that count for a prompt's kind, each times its weight.

    To weight a term differently by kind, list it once for each kind. A sample has no reward if one of its terms has an
    error, or if no term counts for its kind.

    Attributes:
        cache: a SQLite file with the scores of each term, by the sample and the term's config; it is created. Without a
            file, equal samples of one call are scored once and nothing is stored. Errors are never stored.
    """

    name: str = "sum"
    terms: tuple[TermConfig, ...]
    cache: str | None = None

    def __post_init__(self) -> None:
        self.require(bool(self.terms), "a sum needs at least one term")
        for index, term in enumerate(self.terms):
            for other in self.terms[:index]:
                self.require(
                    not _overlap(term.reward, other.reward),
                    f"two terms with the name '{term.reward.name}' count for the same kind of prompts; rename one",
                )

    def build(self) -> Reward:
        return WeightedSum(self)


def _overlap(one: RewardConfig, other: RewardConfig) -> bool:
    if one.name != other.name:
        return False
    return not one.kinds or not other.kinds or bool(set(one.kinds) & set(other.kinds))


class WeightedSum:
    """See `SumConfig`."""

    def __init__(self, config: SumConfig) -> None:
        self._terms = [_Term(term) for term in config.terms]
        self._cache_path = config.cache

    def __call__(self, samples: Sequence[Sample]) -> list[Score]:
        digests = [sample_digest(sample) for sample in samples]
        parts: list[list[tuple[float, Score]]] = [[] for _ in samples]
        with ExitStack() as opened:
            cache = opened.enter_context(ScoreCache(Path(self._cache_path))) if self._cache_path else None
            for term in self._terms:
                chosen = [index for index, sample in enumerate(samples) if term.counts_for(sample)]
                distinct = {digests[index]: samples[index] for index in chosen}
                scores = term.scores(distinct, cache)
                for index in chosen:
                    parts[index].append((term.weight, scores[digests[index]]))
        return [_combined(sample, found) for sample, found in zip(samples, parts, strict=True)]


class _Term:
    def __init__(self, config: TermConfig) -> None:
        self.weight, self._config = config.weight, config.reward
        self._reward = config.reward.build()

    def counts_for(self, sample: Sample) -> bool:
        return not self._config.kinds or sample.prompt.kind in self._config.kinds

    def scores(self, samples: dict[str, Sample], cache: ScoreCache | None) -> dict[str, Score]:
        """Return the scores of samples, by their digests."""
        found = cache.read(self._config, samples) if cache is not None else {}
        missing = {digest: sample for digest, sample in samples.items() if digest not in found}
        computed = dict(zip(missing, self._computed(list(missing.values())), strict=True)) if missing else {}
        if cache is not None:
            cache.write(self._config, {digest: score for digest, score in computed.items() if not score.error})
        return found | computed

    def _computed(self, samples: Sequence[Sample]) -> list[Score]:
        name = self._config.name
        try:
            scores = self._reward(samples)
        except Exception as error:  # a reward is arbitrary code; its failure costs these samples, not the run
            return [failed(name, f"{type(error).__name__}: {error}")] * len(samples)
        if len(scores) != len(samples):
            return [failed(name, f"{len(scores)} scores for {len(samples)} samples")] * len(samples)
        return [score if math.isfinite(score.reward) else failed(name, f"the reward is {score.reward}") for score in scores]


def _combined(sample: Sample, parts: Sequence[tuple[float, Score]]) -> Score:
    if not parts:
        return failed("sum", f"no term counts for prompts of kind '{sample.prompt.kind}'")
    terms = {name: value for _, score in parts for name, value in score.terms.items()}
    errors = [score.error for _, score in parts if score.error]
    if errors:
        return Score(reward=0.0, terms=terms, error="; ".join(errors))
    return Score(reward=sum(weight * score.reward for weight, score in parts), terms=terms)
