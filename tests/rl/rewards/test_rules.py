"""Rules that hang, raise, die or return NaN cost their own sample; sums, weights and cached scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from reward_samples import MisbehavingConfig, sample

from openafm.core.config import ConfigError, from_dict, to_tagged_dict
from openafm.rl.rewards.base import Reward, RewardConfig, scored
from openafm.rl.rewards.rules import RuleConfig
from openafm.rl.rewards.sum import SumConfig, TermConfig
from openafm.rl.rewards.text import LengthConfig, RepetitionConfig
from openafm.rl.trajectories import Sample, Score


@dataclass(frozen=True, kw_only=True)
class CountingConfig(RewardConfig):
    """The number of characters, computed in this process. It counts what it was asked."""

    name: str = "characters"
    log: str
    factor: float = 1.0

    def build(self) -> Reward:
        def score(samples: Sequence[Sample]) -> list[Score]:
            with Path(self.log).open("a") as file:
                file.writelines(each.text + "\n" for each in samples)
            if any(each.text == "raise" for each in samples):
                raise RuntimeError("on purpose")
            return [scored(self.name, self.factor * len(each.text)) for each in samples]

        return score


def test_a_rule_that_hangs_raises_dies_or_is_not_finite_costs_its_own_sample() -> None:
    texts = ["fine", "compute", "sleep", "raise", "exit", "allocate", "nan", "fine"]
    reward = MisbehavingConfig(time_limit=0.1, memory_mb=512).build()
    scores = reward([sample(text) for text in texts])
    assert [score.error for score in scores] == [
        "",
        "misbehaving: no result within the time limit of 0.1 s",
        "misbehaving: no result within the time limit of 0.1 s",
        "misbehaving: RuntimeError: on purpose",
        "misbehaving: the worker process ended: exit code 3",
        "misbehaving: MemoryError: ",
        "misbehaving: the reward is nan",
        "",
    ]
    assert scores[0] == Score(reward=1.0, terms={"misbehaving": 1.0})


def test_a_sum_weights_the_terms_that_count_for_a_kind() -> None:
    config = SumConfig(
        terms=(
            TermConfig(reward=RepetitionConfig(n=1), weight=2.0),
            TermConfig(reward=LengthConfig(kinds=("chat",), free_tokens=0, max_tokens=20)),
            TermConfig(reward=LengthConfig(kinds=("math",), free_tokens=0, max_tokens=40), weight=4.0),
        )
    )
    read = from_dict(SumConfig, json.loads(json.dumps(to_tagged_dict(config, SumConfig))))
    chat, math = read.build()([sample("a b a b", kind="chat"), sample("a b", kind="math")])
    assert chat == Score(reward=2 * -0.5 - 0.5, terms={"repetition": -0.5, "length": -0.5})
    assert math == Score(reward=4 * -0.25, terms={"repetition": 0.0, "length": -0.25})


def test_a_term_with_an_error_leaves_the_sample_without_a_reward(tmp_path: Path) -> None:
    counting = CountingConfig(log=str(tmp_path / "log"), kinds=("math",))
    reward = SumConfig(terms=(TermConfig(reward=counting), TermConfig(reward=RepetitionConfig(kinds=("math",))))).build()
    (failing,) = reward([sample("raise")])
    assert failing.error == "characters: RuntimeError: on purpose"
    assert failing.terms == {"repetition": 0.0}
    (other,) = reward([sample("x", kind="chat")])
    assert other.error == "sum: no term counts for prompts of kind 'chat'"
    (infinite,) = SumConfig(terms=(TermConfig(reward=CountingConfig(log=counting.log, factor=1e308)),)).build()(
        [sample("abc")]
    )
    assert infinite.error == "characters: the reward is inf"


def test_scores_are_stored_by_sample_config_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"

    def asked(factor: float, *texts: str) -> list[str]:
        log.write_text("")
        counting = CountingConfig(log=str(log), factor=factor)
        config = SumConfig(terms=(TermConfig(reward=counting),), cache=str(tmp_path / "new" / "scores.sqlite"))
        scores = config.build()([sample(text) for text in texts])
        assert [score.reward for score in scores] == [0 if text == "raise" else factor * len(text) for text in texts]
        return log.read_text().split()

    assert asked(1, "a", "bb", "a") == ["a", "bb"]
    assert asked(1, "a", "ccc", "bb") == ["ccc"]
    assert asked(2, "a") == ["a"]
    assert asked(1, "raise") == asked(1, "raise") == ["raise"]  # errors are not stored
    monkeypatch.setattr(CountingConfig, "VERSION", 2)
    assert asked(1, "a") == ["a"]


def test_wrong_configs_are_errors() -> None:
    with pytest.raises(ConfigError, match="two terms with the name 'length' count for the same kind"):
        SumConfig(terms=(TermConfig(reward=LengthConfig()), TermConfig(reward=LengthConfig(kinds=("chat",)))))
    with pytest.raises(ConfigError, match="at least one term"):
        SumConfig(terms=())
    with pytest.raises(ConfigError, match="weight must be finite"):
        TermConfig(reward=LengthConfig(), weight=float("nan"))
    with pytest.raises(ConfigError, match="time_limit"):
        LengthConfig(time_limit=0)
    assert issubclass(LengthConfig, RuleConfig)
