"""The config of a run: text and back, overrides, impossible values, differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_runs import tiny_run

from openafm.core.config import ConfigError, UnknownKeyError, from_dict, override, to_dict
from openafm.data.loader import LoaderConfig, SourceConfig
from openafm.training.config import (
    BFloat16Config,
    EMAConfig,
    EvaluationConfig,
    MuonConfig,
    TimeBudget,
    TrainerConfig,
    first_difference,
)
from openafm.training.schedules import WarmupStableDecay

LOADER = LoaderConfig(sources=(SourceConfig(name="a", path="a"),), rows_per_step=2, row_tokens=32)


def test_a_config_with_every_other_part_survives_json() -> None:
    config = tiny_run(
        LOADER,
        budget=TimeBudget(seconds=60),
        optimizer=MuonConfig(),
        schedule=WarmupStableDecay(decay_fraction=0.5),
        ema=EMAConfig(),
        precision=BFloat16Config(),
        evaluation=EvaluationConfig(data=LOADER),
    )
    assert from_dict(TrainerConfig, to_dict(config)) == config


def test_single_values_and_whole_parts_are_overridden() -> None:
    changes = {"optimizer.learning_rate": "3e-4", "budget": '{"type": "TimeBudget", "seconds": 5}', "ema": "{}"}
    config = override(tiny_run(LOADER), changes)
    assert config.optimizer.learning_rate == 3e-4
    assert config.budget == TimeBudget(seconds=5.0)
    assert config.ema == EMAConfig()
    with pytest.raises(UnknownKeyError, match="did you mean 'learning_rate'"):
        override(config, {"optimizer.learningrate": "1"})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("budget.num_steps", "0", "num_steps must be at least 1"),
        ("optimizer.learning_rate", "0", "learning_rate must be above 0"),
        ("optimizer.betas", "[0.9, 1.0]", "betas"),
        ("microbatch_rows", "0", "microbatch_rows must be at least 1"),
        ("checkpoint.keep", "0", "keep must be at least 1"),
        ("data.row_tokens", "128", "do not fit the model's context of 64"),
        ("ema", '{"decay": 1.0}', "decay must lie in"),
    ],
)
def test_impossible_values_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override(tiny_run(LOADER), {key: value})


def test_the_first_difference_is_named_by_its_dotted_key() -> None:
    config = tiny_run(LOADER)
    assert first_difference(config, config) is None
    moved = replace(LOADER, sources=(SourceConfig(name="a", path="b"),))
    assert first_difference(config, replace(config, data=moved)) == "data.sources[0].path is a, not b"
    assert first_difference(config, replace(config, log_every=2), ignored=("log_every",)) is None
    timed = first_difference(config, replace(config, budget=TimeBudget(seconds=1)))
    assert timed == "budget.type is StepBudget, not TimeBudget"


def test_the_average_follows_quickly_at_first() -> None:
    ema = EMAConfig(decay=0.99)
    assert [ema.decay_at(update) for update in (1, 11, 891, 10_000)] == pytest.approx([0.1, 0.55, 0.99, 0.99])
