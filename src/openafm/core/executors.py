"""Executors: map a function over items in worker processes, on this machine or on a Ray cluster.

Each worker is a process of its own that reads an item, computes the function and writes the result. Results arrive in the
order in which they finish. A worker that exceeds a limit or dies costs the item that it computes and nothing else: the
executor reports a `Failure` and starts another worker.

A function and its items must be picklable by reference: defined in a module that workers can import, not in `__main__`.
Workers do not import the `__main__` module of their parent, so that they start fast and scripts need no guard.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any, Generic, Literal, Self, TypeVar

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError

Item = TypeVar("Item")
Result = TypeVar("Result")
Reason = Literal["cpu_time", "wall_time", "killed", "crashed"]
Report = Callable[[int], None]

_LENGTH = struct.Struct("<Q")
_REASONS: dict[str, Reason] = {"SIGPROF": "cpu_time", "SIGALRM": "wall_time", "SIGKILL": "killed"}
_CLOSE_SECONDS = 2.0


class RayMissingError(OpenAFMError):
    """Ray is not installed, or its cluster cannot be reached."""


class WorkerStartError(OpenAFMError):
    """A worker process ends before it computes anything."""


@dataclass(frozen=True, kw_only=True)
class LimitsConfig(Config):
    """Limits of one unit of work (see `unit`) and of a worker's memory; 0 is no limit.

    CPU time is the limit that decides on a busy machine; wall time ends work that waits without computing. `memory_mb` is
    the size of a worker's heap: an allocation beyond it raises MemoryError, or ends the worker if a library ignores that.
    Enforced by the kernel of Linux and macOS (memory: Linux); without effect on Windows.
    """

    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    memory_mb: int = 0

    def __post_init__(self) -> None:
        smallest = min(self.cpu_seconds, self.wall_seconds, self.memory_mb)
        self.require(smallest >= 0, f"limits must be 0 (none) or more, got {smallest}")


NO_LIMITS = LimitsConfig()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a worker did not return: its reason, and the position of the unit in which it ended (-1 outside of units)."""

    reason: Reason
    detail: str
    position: int = -1


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Item, Result]):
    """The result of one item, or the failure of its worker."""

    item: Item
    result: Result | None = None
    failure: Failure | None = None


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
        on_unit: Report | None = None,
    ) -> Iterator[Outcome[Item, Result]]:
        """Yield an outcome for each item, in the order in which they finish. Items are read as workers become free.

        `on_unit` is called with the position of each unit that a worker begins, where the executor receives it.

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
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers = [_Worker() for _ in range(num_workers)]
        for worker in self._workers:
            self._idle.put(worker)

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        limits: LimitsConfig = NO_LIMITS,
        on_unit: Report | None = None,
    ) -> Iterator[Outcome[Item, Result]]:
        def compute(item: Item) -> Outcome[Item, Result]:
            worker = self._idle.get()
            try:
                return worker.compute(function, item, limits, on_unit)
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
        on_unit: Report | None = None,
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
    worker = _Worker()
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


class _Worker:
    """A worker process, started by its first item and started again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def compute(
        self, function: Callable[[Item], Result], item: Item, limits: LimitsConfig, on_unit: Report | None
    ) -> Outcome[Item, Result]:
        process = self._running()
        position = -1
        try:
            _send(process.stdin, (function, item, limits))
            while True:
                kind, value = _receive(process.stdout)
                if kind == "unit":
                    position = value
                    if on_unit is not None:
                        on_unit(position)
                elif kind == "result":
                    return Outcome(item=item, result=value)
                else:
                    raise value
        except (EOFError, BrokenPipeError):
            return Outcome(item=item, failure=self._failure(process, position))

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _close(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
            try:
                _receive(self._process.stdout)
            except EOFError as error:
                code = self._process.wait()
                self.kill()
                raise WorkerStartError(
                    f"a worker process ended with exit code {code} before it computed anything"
                ) from error
        return self._process

    def _failure(self, process: subprocess.Popen[bytes], position: int) -> Failure:
        code = process.wait(_CLOSE_SECONDS)
        _close(process)
        self._process = None
        try:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except ValueError:
            name = f"signal {-code}"
        return Failure(reason=_REASONS.get(name, "crashed"), detail=name, position=position)


_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from openafm.core.executors import work; work()"


class _Channel:
    """A worker's connection to its parent, and the limits of the present item."""

    def __init__(self, requests: IO[bytes], replies: IO[bytes]) -> None:
        self.requests, self.replies, self.limits = requests, replies, NO_LIMITS


_channel: _Channel | None = None


@contextlib.contextmanager
def unit(position: int) -> Iterator[None]:
    """Apply the time limits to the block, the unit `position` of the item. Without effect outside of a worker."""
    if _channel is None:
        yield
        return
    _send(_channel.replies, ("unit", position))
    _arm(_channel.limits)
    try:
        yield
    finally:
        _arm(NO_LIMITS)


def work() -> None:
    """Compute items until the parent closes the connection; the main function of a worker process."""
    global _channel
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with replies
    requests = sys.stdin.buffer
    _channel = _Channel(requests, replies)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        _send(replies, ("ready", None))
        while True:
            _reply(_channel)


def _reply(channel: _Channel) -> None:
    try:
        function, item, limits = _receive(channel.requests)
        channel.limits = limits
        _limit_memory(limits.memory_mb)
        reply = ("result", function(item))
        data = pickle.dumps(reply)
    except (EOFError, BrokenPipeError):
        raise
    except BaseException as error:  # the parent raises it
        data = pickle.dumps(("raised", _portable(error)))
    _write(channel.replies, data)


def _portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled, with the traceback of the worker as a note."""
    text = "".join(traceback.format_exception(error))
    copy: object
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # an error class with a constructor of its own
        copy = None
    if not isinstance(copy, Exception):
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"in a worker process:\n{text}")
    return copy


def _arm(limits: LimitsConfig) -> None:
    """Start the timers, or stop them for `NO_LIMITS`. Their signals end the process, whatever code is running."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds)


def _limit_memory(memory_mb: int) -> None:
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = memory_mb << 20 if memory_mb else hard
        resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _send(file: IO[bytes] | None, value: object) -> None:
    _write(file, pickle.dumps(value))


def _write(file: IO[bytes] | None, data: bytes) -> None:
    assert file is not None
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def _receive(file: IO[bytes] | None) -> Any:
    """Return the next value; raise EOFError if the other side is gone."""
    assert file is not None
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
    return pickle.loads(_exactly(file, length))


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _close(process: subprocess.Popen[bytes]) -> None:
    for file in (process.stdin, process.stdout):
        if file is not None:
            with contextlib.suppress(BrokenPipeError):
                file.close()
