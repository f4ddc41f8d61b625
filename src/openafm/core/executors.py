"""Executors: map a function over items in worker processes, on this machine or on a Ray cluster.

Each worker is a process of its own that reads an item, computes the function and writes the result. Results arrive in the
order in which they finish. A worker that exceeds a limit or dies costs the item that it computes and nothing else: the
executor reports a `Failure` and starts another worker.

A function and its items must be picklable by reference: defined in a module that workers can import, not in `__main__`.
Workers do not import the `__main__` module of their parent, so that they start fast and scripts need no guard.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError
from openafm.core.worker_process import NO_LIMITS, Failure, Item, LimitsConfig, Outcome, Report, Result, Worker


class RayMissingError(OpenAFMError):
    """Ray is not installed, or its cluster cannot be reached."""


class Executor(ABC):
    """Maps functions over items. Use as a context manager; leaving it ends the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        limits: LimitsConfig = NO_LIMITS,
        on_units: Report | None = None,
    ) -> Iterator[Outcome[Item, Result]]:
        """Yield an outcome for each item, in the order in which they finish. Items are read as workers become free.

        `on_units` is called with the number of units that workers began since its last call, several times in a second,
        where the executor receives it.

        Raises:
            Exception: whatever `function` raises; the other workers are ended by `close`.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers."""


@dataclass(frozen=True, kw_only=True)
class ExecutorConfig(Config, ABC):
    """Base of the executors."""

    @abstractmethod
    def build(self) -> Executor:
        """Return the executor."""


@dataclass(frozen=True, kw_only=True)
class LocalConfig(ExecutorConfig):
    """Processes on this machine; `num_workers` 0 is one for each core that this process may use."""

    num_workers: int = 0

    def __post_init__(self) -> None:
        self.require(self.num_workers >= 0, f"num_workers must be 0 (one per core) or more, got {self.num_workers}")

    def build(self) -> Executor:
        return LocalExecutor(self.num_workers or num_cores())


@dataclass(frozen=True, kw_only=True)
class RayConfig(ExecutorConfig):
    """Tasks of one core each on a Ray cluster. `address` is that of `ray start`, "auto", or "" for one on this machine.

    `num_workers` bounds the tasks in flight; 0 is the number of cores of the cluster. Input and output folders must have the
    same path on every machine.
    """

    address: str = ""
    num_workers: int = 0

    def __post_init__(self) -> None:
        self.require(self.num_workers >= 0, f"num_workers must be 0 (one per core) or more, got {self.num_workers}")

    def build(self) -> Executor:
        """Connect to the cluster.

        Raises:
            RayMissingError: Ray is not installed, or there is no cluster at the address.
        """
        return RayExecutor(self.address, self.num_workers)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalExecutor(Executor):
    """Worker processes on this machine, each driven by a thread. Workers start with their first item and are kept."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="openafm-executor")
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._workers = [Worker() for _ in range(num_workers)]
        for worker in self._workers:
            self._idle.put(worker)

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        limits: LimitsConfig = NO_LIMITS,
        on_units: Report | None = None,
    ) -> Iterator[Outcome[Item, Result]]:
        def compute(item: Item) -> Outcome[Item, Result]:
            worker = self._idle.get()
            try:
                return worker.compute(function, item, limits, on_units)
            finally:
                self._idle.put(worker)

        yield from _windowed(lambda item: self._threads.submit(compute, item), items, self._num_workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.kill()  # a thread may have started another one meanwhile


class RayExecutor(Executor):
    """Tasks on a Ray cluster. Each computes its item in a worker process, so that limits work as on one machine."""

    def __init__(self, address: str, num_workers: int) -> None:
        if importlib.util.find_spec("ray") is None:
            raise RayMissingError("the Ray executor needs ray; install it with: pip install 'openafm[ray]'")
        ray: Any = importlib.import_module("ray")
        self._ray = ray
        self._owns_connection = not ray.is_initialized()
        if self._owns_connection:
            try:
                ray.init(
                    address=address or None,
                    runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}},
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise RayMissingError(
                    f"no Ray cluster at {address!r}: {error}; start one with `ray start --head`, or leave the address empty"
                ) from error
        self._num_workers = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.remote(num_cpus=1, max_retries=0)(_compute_once)

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        limits: LimitsConfig = NO_LIMITS,
        on_units: Report | None = None,
    ) -> Iterator[Outcome[Item, Result]]:
        reference = self._ray.put(pickle.dumps(function))
        pending: dict[Any, Item] = {}
        feed = iter(items)
        is_exhausted = False
        while pending or not is_exhausted:
            while not is_exhausted and len(pending) < self._num_workers:
                try:
                    item = next(feed)
                except StopIteration:
                    is_exhausted = True
                else:
                    pending[self._task.remote(reference, pickle.dumps(item), limits)] = item
            done, _ = self._ray.wait(list(pending), num_returns=1) if pending else ([], [])
            for task in done:
                yield self._outcome(task, pending.pop(task))

    def _outcome(self, task: Any, item: Any) -> Outcome[Any, Any]:
        try:
            outcome: Outcome[Any, Any] = pickle.loads(self._ray.get(task))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except self._ray.exceptions.RayError as error:  # the machine was lost
            return Outcome(item=item, failure=Failure(reason="crashed", detail=str(error).partition("\n")[0]))
        return outcome

    def close(self) -> None:
        if self._owns_connection:
            self._ray.shutdown()


def _compute_once(function: bytes, item: bytes, limits: LimitsConfig) -> bytes:
    """Compute one item in a worker process; a task of Ray."""
    worker = Worker()
    try:
        return pickle.dumps(worker.compute(pickle.loads(function), pickle.loads(item), limits, None))
    finally:
        worker.kill()


def _windowed(
    submit: Callable[[Item], Future[Outcome[Item, Result]]], items: Iterable[Item], width: int
) -> Iterator[Outcome[Item, Result]]:
    """Yield results as they finish, with at most `width` items submitted."""
    pending: set[Future[Outcome[Item, Result]]] = set()
    for item in items:
        pending.add(submit(item))
        if len(pending) == width:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    while pending:
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        yield from (future.result() for future in done)
