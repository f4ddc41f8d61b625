"""Who generates: this process between two updates, or worker processes beside the updates."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from openafm.core.executors import Executor
from openafm.core.worker_process import LimitsConfig
from openafm.rl.buffer import ReplayBuffer
from openafm.rl.config import RLConfig
from openafm.rl.generator import Task, TrajectoryGenerator, generate
from openafm.rl.trajectories import Group


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Numbers of samples by their state.

    Attributes:
        generated: samples whose task was given to a generator, each counted once however often it was repeated.
        in_flight: samples in tasks that are not complete, and in the buffer before their step.
        replaced: generators that died or hung and were replaced.
    """

    generated: int
    in_flight: int
    replaced: int


class Generators(ABC):
    """Supplies the groups of each step. Use as a context manager; leaving it ends the worker processes.

    Args:
        start_step: the first step whose groups are requested.
    """

    def __init__(self, config: RLConfig, folder: Path, buffer: ReplayBuffer, start_step: int) -> None:
        self._config, self._folder, self._buffer = config, folder, buffer
        self._step = start_step  # the step whose groups are requested next
        self._before = start_step * config.prompts_per_step  # groups of earlier steps
        self._replaced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def groups(self, step: int) -> list[Group]:
        """Wait for the groups of a step and return them, by number."""

    @abstractmethod
    def publish(self, version: int) -> None:
        """Admit tasks up to `lag` steps ahead of a published version."""

    @abstractmethod
    def progress(self, step: int) -> Progress:
        """Return the numbers of samples, where the steps before `step` have been trained on."""

    @abstractmethod
    def close(self) -> None:
        """End the worker processes."""

    def _tasks(self, step: int) -> list[Task]:
        """Return the tasks of a step."""
        first, each = step * self._config.prompts_per_step, self._config.groups_per_task
        starts = range(first, first + self._config.prompts_per_step, each)
        return [Task(folder=str(self._folder), numbers=tuple(range(start, start + each))) for start in starts]

    def _is_done(self, task: Task) -> bool:
        return all(self._buffer.has(number) for number in task.numbers)

    def _read(self, step: int) -> list[Group]:
        return [self._buffer.read(number) for task in self._tasks(step) for number in task.numbers]


class InlineGenerator(Generators):
    """The synchronous loop: this process generates the samples of a step, then updates the policy."""

    def __init__(self, config: RLConfig, folder: Path, buffer: ReplayBuffer, start_step: int) -> None:
        super().__init__(config, folder, buffer, start_step)
        self._generator = TrajectoryGenerator(config, folder, part="generator-inline")

    def groups(self, step: int) -> list[Group]:
        for task in self._tasks(step):
            if not self._is_done(task):
                self._generator.generate(task.numbers)
        self._step = step + 1
        return self._read(step)

    def publish(self, version: int) -> None:
        """Do nothing: the next call of `groups` loads the version."""

    def close(self) -> None:
        """Do nothing: there are no worker processes."""

    def progress(self, step: int) -> Progress:
        generated = self._step * self._config.prompts_per_step
        size = self._config.group_size
        return Progress(
            generated=size * generated, in_flight=size * (generated - step * self._config.prompts_per_step), replaced=0
        )


class GeneratorPool(Generators):
    """The asynchronous loop: an executor's worker processes generate while this process updates the policy.

    A thread for each generator gives it the next admitted task. A worker that dies or exceeds the time of a task is replaced
    and its task repeated. Steps train on their groups in order, and a task of step s is admitted once version s - lag is
    published, so no sample becomes too old.
    """

    def __init__(
        self,
        config: RLConfig,
        folder: Path,
        buffer: ReplayBuffer,
        start_step: int,
        *,
        executor: Executor,
        num_generators: int,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(config, folder, buffer, start_step)
        self._executor, self._note = executor, note
        self._changed = threading.Condition()
        self._waiting: deque[Task] = deque()
        self._running: set[Task] = set()
        self._attempts: dict[Task, int] = {}
        self._admitted_steps = start_step  # tasks of the steps before are waiting, running or done
        self._error: BaseException | None = None
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"openafm-generator-{index}", daemon=True)
            for index in range(num_generators)
        ]
        self.publish(start_step)
        for thread in self._threads:
            thread.start()

    def groups(self, step: int) -> list[Group]:
        """Wait for the groups of a step.

        Raises:
            OpenAFMError: a generator raised it, such as for a damaged weight file.
        """
        tasks = self._tasks(step)
        with self._changed:
            while self._error is None and not all(self._is_done(task) for task in tasks):
                self._changed.wait(1.0)
            if self._error is not None:
                raise self._error
            self._step = step + 1
        return self._read(step)

    def publish(self, version: int) -> None:
        with self._changed:
            while self._admitted_steps <= version + self._config.lag and self._admitted_steps < self._num_steps:
                self._waiting += [task for task in self._tasks(self._admitted_steps) if not self._is_done(task)]
                self._admitted_steps += 1
            self._changed.notify_all()

    def progress(self, step: int) -> Progress:
        with self._changed:
            first, last = (each * self._config.prompts_per_step for each in (step, self._admitted_steps))
            # A task may be running although its groups are in the buffer, or trained on: its worker has not returned yet.
            in_tasks = {number for task in (*self._waiting, *self._running) for number in task.numbers}
            in_flight = {number for number in (*in_tasks, *self._buffer.numbers()) if first <= number < last}
            size = self._config.group_size
            return Progress(generated=size * last, in_flight=size * len(in_flight), replaced=self._replaced)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._executor.close()
        for thread in self._threads:
            thread.join()

    @property
    def _num_steps(self) -> int:
        steps = self._config.trainer.budget.steps(self._config.trainer.data)
        assert steps is not None, "checked by the run"
        return steps

    def _serve(self) -> None:
        """Give tasks to one generator; the main function of a thread."""
        try:
            while (task := self._next()) is not None:
                self._compute(task)
        except BaseException as error:  # raised again in the thread of the policy updater
            with self._changed:
                if not self._is_closed:
                    self._error = error
                self._changed.notify_all()

    def _next(self) -> Task | None:
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            task = self._waiting.popleft()
            self._running.add(task)
            return task

    def _compute(self, task: Task) -> None:
        limits = LimitsConfig(wall_seconds=self._config.task_seconds)
        (outcome,) = self._executor.map(generate, [task], limits)
        with self._changed:
            self._running.discard(task)
            if outcome.failure is not None and not self._is_closed:
                self._replaced += 1
            if outcome.failure is not None and not self._is_closed and not self._is_done(task):
                self._repeat(task, outcome.failure.detail, is_hung=outcome.failure.reason == "wall_time")
            self._changed.notify_all()

    def _repeat(self, task: Task, detail: str, *, is_hung: bool) -> None:
        """Repeat a task whose generator died, or drop it. The caller holds the lock."""
        attempts = self._attempts[task] = self._attempts.get(task, 0) + 1
        why = f"hung for {self._config.task_seconds:g} s" if is_hung else f"died ({detail})"
        numbers = f"prompts {task.numbers[0]} to {task.numbers[-1]}"
        if attempts < self._config.max_attempts:
            self._note(f"a generator {why} with {numbers}; it is replaced and its task repeated")
            self._waiting.appendleft(task)
            return
        self._note(f"generators {why} {attempts} times with {numbers}; they are dropped")
        for number in task.numbers:
            self._buffer.add(
                Group(number=number, trajectories=(), tokenizer=self._buffer.tokenizer, error=f"generators {why}")
            )
