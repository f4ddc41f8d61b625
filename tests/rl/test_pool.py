"""Pacing and counters of the dispatch, with an executor that computes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_policies import tiny_policy_run

from openafm.core.executors import Executor
from openafm.core.worker_process import Failure, LimitsConfig, Outcome
from openafm.rl.buffer import ReplayBuffer
from openafm.rl.generator import Task
from openafm.rl.pool import GeneratorPool
from openafm.rl.trajectories import Group


class ScriptedExecutor(Executor):
    """Write empty groups, except for tasks in `fails`, whose worker dies that many times."""

    def __init__(self, buffer: ReplayBuffer, fails: dict[int, int]) -> None:
        self._buffer, self._fails = buffer, fails
        self.seen: list[int] = []

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], limits: LimitsConfig, *_: Any) -> Iterator[Any]:
        for task in items:
            assert isinstance(task, Task)
            self.seen += task.numbers
            if self._fails.get(task.numbers[0], 0):
                self._fails[task.numbers[0]] -= 1
                yield Outcome(item=task, failure=Failure(reason="killed", detail="SIGKILL"))
                continue
            for number in task.numbers:
                self._buffer.add(Group(number=number, trajectories=(), tokenizer="abc"))
            yield Outcome(item=task, result=0)

    def close(self) -> None:
        """Nothing runs."""


def pool(folder: Path, fails: dict[int, int] | None = None, start_step: int = 0, **changes: object) -> Any:
    config = tiny_policy_run(folder, num_steps=6, **changes)
    buffer = ReplayBuffer(folder / "buffer", "abc")
    executor = ScriptedExecutor(buffer, fails or {})
    notes: list[str] = []
    made = GeneratorPool(config, folder, buffer, start_step, executor=executor, num_generators=1, note=notes.append)
    return made, executor, notes


def test_tasks_are_admitted_up_to_the_lag(tmp_path: Path) -> None:
    generators, executor, _ = pool(tmp_path, lag=1)
    with generators:
        generators.groups(1)  # steps 0 and 1 are admitted before any update
        assert executor.seen == [0, 1, 2, 3]
        progress = generators.progress(0)
        assert (progress.generated, progress.in_flight) == (16, 16)
        generators.publish(1)
        generators.groups(2)
        assert executor.seen == [0, 1, 2, 3, 4, 5]
        progress = generators.progress(1)
        assert (progress.generated, progress.in_flight) == (24, 16)


def test_a_task_whose_worker_has_not_returned_is_counted_once(tmp_path: Path) -> None:
    generators, _, _ = pool(tmp_path)
    with generators:
        generators.groups(0)
        for step, expected in ((0, 8), (1, 0)):
            generators._running.add(Task(folder="", numbers=(0,)))
            assert generators.progress(step).in_flight == expected


def test_a_restarted_pool_keeps_the_groups_of_the_buffer(tmp_path: Path) -> None:
    ReplayBuffer(tmp_path / "buffer", "abc").add(Group(number=3, trajectories=(), tokenizer="abc"))
    generators, executor, _ = pool(tmp_path, start_step=1)
    with generators:
        assert [group.number for group in generators.groups(1)] == [2, 3]
    assert executor.seen == [2]


def test_a_task_is_repeated_and_then_dropped(tmp_path: Path) -> None:
    generators, _, notes = pool(tmp_path, fails={0: 1, 1: 5}, max_attempts=3)
    with generators:
        first, second = generators.groups(0)
        assert (first.error, second.error) == ("", "generators died (SIGKILL)")
        assert generators.progress(1).replaced == 4
    assert [note for note in notes if "dropped" in note] == [
        "generators died (SIGKILL) 3 times with prompts 1 to 1; they are dropped"
    ]


def test_an_error_of_a_generator_is_raised_in_the_updater(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[Any]:
        raise ValueError("the weights are damaged")

    monkeypatch.setattr(ScriptedExecutor, "map", broken)
    generators, _, _ = pool(tmp_path)
    with generators, pytest.raises(ValueError, match="the weights are damaged"):
        generators.groups(0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("openafm-generator")]
