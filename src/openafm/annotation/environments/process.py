"""Tool calls of a project in a worker process, within limits of time and memory."""

from __future__ import annotations

import datetime
import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openafm.annotation.environments.host import CallResult, Problem, ToolHost
from openafm.annotation.environments.project import Project
from openafm.core.worker_process import LimitsConfig, Outcome, Worker, unit
from openafm.tokenizer.conversation import ToolDefinition

_PROBLEMS = {"wall_time": Problem.TIMED_OUT, "cpu_time": Problem.TIMED_OUT, "killed": Problem.CRASHED}


def state_key(image: bytes) -> str:
    """Return the key of an initial state."""
    return hashlib.blake2b(image, digest_size=16).hexdigest()


def next_key(key: str, delta: bytes) -> str:
    """Return the key of the state after `delta`; the same state if it is empty."""
    return hashlib.blake2b(key.encode() + delta, digest_size=16).hexdigest() if delta else key


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What a worker needs to build a `ToolHost`; `tools_digest` makes changed tools load again."""

    path: Path
    tools_digest: str
    start: datetime.datetime
    seed: int
    max_characters: int


@dataclass(frozen=True, kw_only=True)
class _Request:
    source: _Source
    image: bytes | None
    name: str = ""
    arguments: Mapping[str, Any] | None = None
    index: int = 0


class ToolProcess:
    """A worker process with the tools of a project and one state of its database. Its calls run one at a time."""

    def __init__(self, project: Project) -> None:
        config = project.config
        self._source = _Source(
            path=project.tools_path.resolve(),
            tools_digest=project.tools_digest,
            start=config.start,
            seed=config.seed,
            max_characters=config.output_characters,
        )
        self._limits = LimitsConfig(
            wall_seconds=config.call_seconds, cpu_seconds=config.call_seconds, memory_mb=config.memory_mb
        )
        self._worker, self._lock = Worker(), threading.Lock()
        self.held = ""
        """The key of the state that the worker holds."""

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the tools as the model reads them.

        Raises:
            ToolFileError: the tools cannot be used.
        """
        with self._lock:
            found: tuple[ToolDefinition, ...] = _result(
                self._compute(_definitions, _Request(source=self._source, image=None))
            )
            return found

    def call(
        self, state: str, image: Callable[[], bytes], name: str, arguments: Mapping[str, Any], index: int
    ) -> tuple[CallResult, str]:
        """Return the result of a call and the key of the state after it.

        Args:
            state: the key of the state before the call.
            image: returns the image of that state; called if the worker holds another one.
            index: the number of calls before this one in the trajectory.

        Raises:
            ToolFileError, SeedError: the tools or the tables of the project cannot be used.
        """
        with self._lock:
            sent = None if self.held == state else image()
            request = _Request(source=self._source, image=sent, name=name, arguments=arguments, index=index)
            outcome = self._compute(_call, request)
            if outcome.result is not None:
                result, self.held = outcome.result, next_key(state, outcome.result.delta)
                return result, self.held
            assert outcome.failure is not None
            self.held = ""
            reason = outcome.failure.reason
            detail = f"{name} ended with {outcome.failure.detail}"
            if reason in ("wall_time", "cpu_time"):
                detail = f"{name} gave no result within {self._limits.wall_seconds:g} s"
            return CallResult(text=f"Error: {detail}", problem=_PROBLEMS.get(reason, Problem.CRASHED), detail=detail), state

    def tables(self, state: str, image: Callable[[], bytes]) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of a state by table."""
        with self._lock:
            sent = None if self.held == state else image()
            tables: dict[str, list[dict[str, Any]]] = _result(
                self._compute(_tables, _Request(source=self._source, image=sent))
            )
            self.held = state
            return tables

    def close(self) -> None:
        """End the worker."""
        self._worker.kill()
        self.held = ""

    def _compute(self, function: Callable[[_Request], Any], request: _Request) -> Outcome[_Request, Any]:
        return self._worker.compute(function, request, self._limits, None)


def _result(outcome: Outcome[_Request, Any]) -> Any:
    if outcome.failure is not None:
        raise RuntimeError(f"a tool process ended: {outcome.failure.detail}")
    return outcome.result


_held: tuple[_Source, ToolHost] | None = None  # of a worker process


def _host(request: _Request) -> ToolHost:
    global _held
    if _held is None or _held[0] != request.source:
        source = request.source
        _held = (
            source,
            ToolHost(source.path, start=source.start, seed=source.seed, max_characters=source.max_characters),
        )
    host = _held[1]
    if request.image is not None:
        host.load(request.image)
    return host


def _definitions(request: _Request) -> tuple[ToolDefinition, ...]:
    with unit(0):
        return tuple(_host(request).definitions.values())


def _call(request: _Request) -> CallResult:
    host = _host(request)
    with unit(0):
        return host.call(request.name, request.arguments or {}, request.index)


def _tables(request: _Request) -> dict[str, list[dict[str, Any]]]:
    return _host(request).tables()
