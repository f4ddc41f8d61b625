"""Runs that end at a deadline: the estimate of the last step, the schedule, and resuming."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import exit_code, tiny_run, train_in_child, wait_for_step, write_corpus

from openafm.data.loading.loader import LoaderConfig
from openafm.training.budgets import DeadlineBudget
from openafm.training.initialization import fresh_state
from openafm.training.observability.metrics import read_metrics
from openafm.training.pace import Pace
from openafm.training.run import train
from openafm.training.schedules import WarmupStableDecay

SCHEDULE = WarmupStableDecay(decay_fraction=0.2, final=0.0)


@pytest.fixture
def corpus(tmp_path: Path) -> LoaderConfig:
    return write_corpus(tmp_path / "corpus")


def paced_steps(corpus: LoaderConfig, step_seconds: list[float], *, done_s: float = 0.0) -> tuple[list[float], float]:
    """Return the factors of the learning rate of a simulated run of 100 s, and the time of its end."""
    state = fresh_state(tiny_run(corpus), "cpu")
    state.num_steps, state.seconds = 50, done_s
    now_s = 0.0
    pace = Pace(DeadlineBudget(seconds=100, reserve=0.1), state, 0.0, lambda: now_s)
    factors = []
    while True:
        pace.update(state)
        if state.step >= state.num_steps:
            return factors, now_s
        factors.append(SCHEDULE.factor(state.step, state.num_steps))
        now_s += step_seconds[state.step % len(step_seconds)]
        state.step += 1


@pytest.mark.parametrize("step_seconds", [[0.1], [1.0, 1.4, 0.7], [0.2] * 9 + [1.0], [25.0]])
def test_the_schedule_ends_with_the_time(corpus: LoaderConfig, step_seconds: list[float]) -> None:
    factors, end_s = paced_steps(corpus, step_seconds)
    assert factors[-1] == 0.0  # the last step was announced
    assert end_s <= 90 + max(step_seconds)
    assert end_s > 90 - 2 * max(step_seconds)
    is_short = len(factors) < 10
    assert is_short or factors[len(factors) // 2] == 1.0
    assert is_short or 0.4 < factors[-len(factors) // 10] < 0.6


def test_steps_that_are_done_count(corpus: LoaderConfig) -> None:
    _, end_s = paced_steps(corpus, [0.5], done_s=60.0)
    assert 29 <= end_s <= 30.5


def test_a_run_ends_decayed_and_stays_finished(tmp_path: Path, corpus: LoaderConfig) -> None:
    train(tiny_run(corpus, num_steps=1), tmp_path / "imports")  # outside of the budget
    config = tiny_run(corpus, budget=DeadlineBudget(seconds=2.0, measured_steps=3), schedule=SCHEDULE, log_every=1)
    process = train_in_child(replace(config, budget=DeadlineBudget(seconds=60.0, measured_steps=3)), tmp_path / "run")
    assert wait_for_step(tmp_path / "run", 20, process)
    os.kill(process, signal.SIGKILL)
    exit_code(process)
    result = train(replace(config, budget=DeadlineBudget(seconds=3.0, measured_steps=3)), tmp_path / "run")
    assert result.finished
    assert result.step == result.num_steps > 20
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, result.num_steps + 1))
    assert lines[-1]["learning_rate"] == 0.0 < lines[-2]["learning_rate"]
    again = train(config, tmp_path / "run")
    assert (again.finished, again.step) == (True, result.step)
