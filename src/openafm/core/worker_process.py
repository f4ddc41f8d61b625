"""A worker process: it reads an item, computes a function and writes the result, within limits that the kernel enforces."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, Literal, TypeVar

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError, portable_error

Item = TypeVar("Item")
Result = TypeVar("Result")
Reason = Literal["cpu_time", "wall_time", "killed", "crashed"]
Report = Callable[[int], None]

_LENGTH = struct.Struct("<Q")
_POSITION = struct.Struct("<q")
_REPORT_SECONDS = 0.1
_REASONS: dict[str, Reason] = {"SIGPROF": "cpu_time", "SIGALRM": "wall_time", "SIGKILL": "killed"}
_CLOSE_SECONDS = 2.0


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


class Worker:
    """A worker process, started by its first item and started again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._position: _Position | None = None

    def compute(
        self, function: Callable[[Item], Result], item: Item, limits: LimitsConfig, on_units: Report | None
    ) -> Outcome[Item, Result]:
        process, position = self._running()
        position.write(-1)
        try:
            _send(process.stdin, (function, item, limits))
            while True:
                kind, value = _receive(process.stdout)
                if kind == "units":
                    if on_units is not None:
                        on_units(value)
                elif kind == "result":
                    return Outcome(item=item, result=value)
                else:
                    raise value
        except (EOFError, BrokenPipeError):
            return Outcome(item=item, failure=self._failure(process, position.read()))

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _close(process)

    def _running(self) -> tuple[subprocess.Popen[bytes], _Position]:
        if self._process is not None and self._position is not None:
            return self._process, self._position
        with tempfile.NamedTemporaryFile(prefix="openafm-worker-") as file:
            file.write(_POSITION.pack(-1))
            file.flush()
            position = _Position(Path(file.name))
            process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), file.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
            self._process, self._position = process, position
            try:
                _receive(process.stdout)
            except EOFError as error:
                code = process.wait()
                self.kill()
                raise WorkerStartError(
                    f"a worker process ended with exit code {code} before it computed anything"
                ) from error
        return process, position

    def _failure(self, process: subprocess.Popen[bytes], position: int) -> Failure:
        code = process.wait(_CLOSE_SECONDS)
        _close(process)
        self._process = None
        try:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except ValueError:
            name = f"signal {-code}"
        return Failure(reason=_REASONS.get(name, "crashed"), detail=name, position=position)


_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from openafm.core.worker_process import work; work(sys.argv[2])"
)


class _Position:
    """The position of the present unit, in memory that a worker and its parent share; it outlives a killed worker."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _POSITION.size)

    def read(self) -> int:
        return int(_POSITION.unpack_from(self._memory)[0])

    def write(self, position: int) -> None:
        _POSITION.pack_into(self._memory, 0, position)


class _Channel:
    """A worker's connection to its parent, and the limits of the present item."""

    def __init__(self, requests: IO[bytes], replies: IO[bytes], position: _Position) -> None:
        self.requests, self.replies, self.position, self.limits = requests, replies, position, NO_LIMITS
        self._num_units, self._reported_at = 0, 0.0

    def begin_unit(self, position: int) -> None:
        """Note a unit. A message for each would cost more than many units, so the parent gets a few in a second."""
        self.position.write(position)
        self._num_units += 1
        if time.monotonic() - self._reported_at > _REPORT_SECONDS:
            self.report_units()

    def report_units(self) -> None:
        if self._num_units:
            _send(self.replies, ("units", self._num_units))
        self._num_units, self._reported_at = 0, time.monotonic()


_channel: _Channel | None = None


@contextlib.contextmanager
def unit(position: int) -> Iterator[None]:
    """Apply the time limits to the block, the unit `position` of the item. Without effect outside of a worker."""
    if _channel is None:
        yield
        return
    _channel.begin_unit(position)
    _arm(_channel.limits)
    try:
        yield
    finally:
        _arm(NO_LIMITS)
        _channel.position.write(-1)


def work(position: str) -> None:
    """Compute items until the parent closes the connection; the main function of a worker process.

    `position` is the file in which the worker notes the unit that it computes.
    """
    global _channel
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with replies
    requests = sys.stdin.buffer
    _channel = _Channel(requests, replies, _Position(Path(position)))
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
        channel.report_units()
    except (EOFError, BrokenPipeError):
        raise
    except BaseException as error:  # the parent raises it
        data = pickle.dumps(("raised", _portable(error)))
    _write(channel.replies, data)


def _portable(error: BaseException) -> Exception:
    """Return an error that can be pickled, with the traceback of the worker as a note."""
    copy = portable_error(error) if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(f"in a worker process:\n{''.join(traceback.format_exception(error))}")
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
