"""The config of a run: JSON, overrides, impossible values, differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parallel_runs import track_model
from tiny_runs import tiny_model, tiny_run

from openafm.core.config import ConfigError, UnknownKeyError, from_dict, override, to_dict
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.training.budgets import StepBudget, TimeBudget, TokenBudget
from openafm.training.config import BFloat16Config, CompileConfig, EMAConfig, EvaluationConfig, TrainerConfig
from openafm.training.initialization import fresh_state
from openafm.training.optimizer_config import MuonConfig
from openafm.training.resuming import first_difference, resume_difference, resume_notes
from openafm.training.schedules import WarmupStableDecay

LOADER = LoaderConfig(sources=(SourceConfig(name="a", path="a"),), rows_per_step=2, row_tokens=32)


def test_a_config_with_all_other_kinds_round_trips_through_json() -> None:
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


def test_single_values_and_whole_configs_are_overridden() -> None:
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
        ("budget", '{"type": "TimeBudget", "seconds": 5, "reserve": 1.0}', "reserve must lie in"),
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


def test_the_decay_of_the_average_is_small_at_first() -> None:
    ema = EMAConfig(decay=0.99)
    assert [ema.decay_at(update) for update in (1, 11, 891, 10_000)] == pytest.approx([0.1, 0.55, 0.99, 0.99])


def test_a_router_without_a_gradient_is_refused() -> None:
    experts = ExpertsConfig(num_experts=4, hidden_dim=16, router=TopKRouterConfig(num_chosen=1))
    model = tiny_model()
    model = replace(model, layers=(replace(model.layers[0], feed_forward=experts), *model.layers[1:]))
    with pytest.raises(ConfigError, match="no gradient for the router; set num_chosen to 2 or more"):
        tiny_run(LOADER, model=model)


def test_compiling_experts_in_fp32_is_refused() -> None:
    with pytest.raises(ConfigError, match="use BFloat16Config"):
        tiny_run(LOADER, model=track_model(), compile=CompileConfig())
    tiny_run(LOADER, model=track_model(), compile=CompileConfig(), precision=BFloat16Config())


def test_listed_keys_and_locations_do_not_keep_a_run_from_resuming() -> None:
    config = tiny_run(LOADER)
    moved = replace(LOADER, sources=(SourceConfig(name="a", path="b"),))
    changed = replace(config, data=moved, microbatch_rows=2, num_threads=3, budget=StepBudget(num_steps=99), log_every=5)
    assert resume_difference(config, changed) is None
    assert resume_notes(config, changed, num_steps=12) == [
        "microbatch_rows was None and is now 2: results differ by rounding from here on",
        "num_threads was None and is now 3: results differ by rounding from here on",
        "the run had 12 steps and now has 99: the schedule continues as in a run of that length, so results differ from "
        "such a run from the start",
    ]
    timed, longer = (replace(config, budget=TimeBudget(seconds=seconds)) for seconds in (60, 90))
    assert resume_notes(timed, timed, num_steps=12) == []
    assert resume_notes(timed, longer, num_steps=12) == [
        "a time budget sets the number of steps when a run starts: it stays 12"
    ]
    assert resume_difference(config, replace(config, data=replace(moved, seed=1))) == "data.seed is 0, not 1"
    started = replace(config, from_bundle="here", from_identity="1")
    assert resume_difference(started, replace(started, from_bundle="there")) is None
    unidentified = replace(started, from_identity=None)
    assert resume_difference(unidentified, replace(unidentified, from_bundle="there")) == "from_bundle is here, not there"


def test_a_budget_in_tokens_is_a_number_of_steps() -> None:
    config = replace(tiny_run(LOADER), budget=TokenBudget(num_tokens=1000))
    assert config.budget.steps(LOADER) == 16  # of 2 rows of 32 tokens
    assert fresh_state(config, "cpu").num_steps == 16
    assert TimeBudget(seconds=1).steps(LOADER) is None
    assert from_dict(TrainerConfig, to_dict(config)) == config
    with pytest.raises(ConfigError, match="num_tokens must be at least 1"):
        TokenBudget(num_tokens=0)
