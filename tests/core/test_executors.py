from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time

import executor_functions as functions
import pytest

from openafm.core.config import ConfigError
from openafm.core.errors import UsageError
from openafm.core.executors import ExecutorConfig, LocalConfig, RayConfig, RayMissingError
from openafm.core.worker_process import LimitsConfig, unit

HAS_RAY = importlib.util.find_spec("ray") is not None
RAY = pytest.param(
    RayConfig(num_workers=2),
    marks=[pytest.mark.slow, pytest.mark.skipif(not HAS_RAY, reason="ray is not installed (extra `ray`)")],
    id="ray",
)
EXECUTORS = pytest.mark.parametrize("config", [pytest.param(LocalConfig(num_workers=2), id="local"), RAY])


@EXECUTORS
def test_every_item_has_one_outcome(config: ExecutorConfig) -> None:
    with config.build() as executor:
        outcomes = list(executor.map(functions.square, range(10)))
    assert sorted((outcome.item, outcome.result) for outcome in outcomes) == [(i, i * i) for i in range(10)]


@EXECUTORS
def test_a_worker_that_dies_costs_its_item_only(config: ExecutorConfig) -> None:
    with config.build() as executor:
        outcomes = {outcome.item: outcome for outcome in executor.map(functions.die_at_three, range(6))}
    failure = outcomes.pop(3).failure
    assert failure is not None
    assert (failure.reason, failure.detail) == ("crashed", "SIGSEGV")
    assert [outcomes[i].result for i in sorted(outcomes)] == [0, 1, 2, 4, 5]


@EXECUTORS
def test_cpu_time_is_limited_per_unit_and_the_position_is_reported(config: ExecutorConfig) -> None:
    limits = LimitsConfig(cpu_seconds=0.2)
    with config.build() as executor:
        outcomes = {outcome.item: outcome for outcome in executor.map(functions.spin_in_unit_two, [0, 1, 0], limits)}
    failure = outcomes[1].failure
    assert failure is not None
    assert (failure.reason, failure.position) == ("cpu_time", 2)
    assert outcomes[0].result == 0


def test_wall_time_ends_work_that_waits() -> None:
    with LocalConfig(num_workers=1).build() as executor:
        (outcome,) = executor.map(functions.sleep_in_unit, [1], LimitsConfig(wall_seconds=0.2))
    assert outcome.failure is not None
    assert (outcome.failure.reason, outcome.failure.position) == ("wall_time", 7)


def test_time_outside_of_units_is_not_limited() -> None:
    with LocalConfig(num_workers=1).build() as executor:
        (outcome,) = executor.map(functions.slow_outside_of_units, [1], LimitsConfig(wall_seconds=0.2))
    assert outcome.failure is None


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all of the heap on Linux only")
def test_memory_is_limited_for_an_item_and_not_for_the_next_map() -> None:
    with LocalConfig(num_workers=1).build() as executor:
        assert [o.result for o in executor.map(functions.allocate, [900], LimitsConfig(memory_mb=500))] == ["refused"]
        assert [o.result for o in executor.map(functions.allocate, [900])] == [str(900 << 20)]


def test_an_error_of_the_function_is_raised_with_the_traceback_of_the_worker() -> None:
    with LocalConfig(num_workers=2).build() as executor, pytest.raises(UsageError, match="is refused") as raised:
        list(executor.map(functions.refuse, range(4)))
    assert "executor_functions.py" in raised.value.__notes__[0]


def test_workers_are_kept_between_items_and_items_are_read_lazily() -> None:
    taken = []

    def items() -> list[int]:
        for number in range(8):
            taken.append(number)
            yield number

    with LocalConfig(num_workers=2).build() as executor:
        results = executor.map(functions.process_id, items())
        first = next(results)
        assert len(taken) <= 4
        assert len({first.result, *(outcome.result for outcome in results)}) == 2


def test_units_are_reported_to_the_caller() -> None:
    seen: list[int] = []
    with LocalConfig(num_workers=1).build() as executor:
        list(executor.map(functions.spin_in_unit_two, [0, 0], on_units=seen.append))
    assert sum(seen) == 8


def test_unit_does_nothing_outside_of_a_worker() -> None:
    with unit(0):
        pass
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_workers_end_with_a_killed_parent() -> None:
    code = """
        import executor_functions as f
        from openafm.core.executors import LocalConfig
        with LocalConfig(num_workers=1).build() as executor:
            for outcome in executor.map(f.process_id, range(10_000)):
                print(outcome.result, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    for _ in range(100):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker still runs")


def test_wrong_values_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="num_workers"):
        LocalConfig(num_workers=-1)
    with pytest.raises(ConfigError, match="limits"):
        LimitsConfig(cpu_seconds=-1.0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RayMissingError, match=r"openafm\[ray\]"):
        RayConfig().build()
