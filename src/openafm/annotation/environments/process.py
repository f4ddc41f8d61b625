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
from openafm.annotation.environments.page_delta import apply_deltas
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
class Lineage:
    """How to make the image of a state: from an initial image by deltas.

    Attributes:
        base: the key of the initial state. A worker that holds its image receives the deltas only.
        image: returns the initial image.
    """

    base: str
    image: Callable[[], bytes]
    deltas: tuple[bytes, ...] = ()


def initial(seed: bytes) -> Lineage:
    """Return the lineage of an initial state."""
    return Lineage(base=state_key(seed), image=lambda: seed)


@dataclass(frozen=True, kw_only=True)
class _Load:
    """A state for a worker; `image` is None if the worker has the initial image."""

    image: bytes | None
    deltas: tuple[bytes, ...]


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
    load: _Load | None
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
        self._base = ""  # the key of the initial image that the worker holds

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the tools as the model reads them.

        Raises:
            ToolFileError: the tools cannot be used.
        """
        with self._lock:
            found: tuple[ToolDefinition, ...] = _result(
                self._compute(_definitions, _Request(source=self._source, load=None))
            )
            return found

    def call(
        self, state: str, lineage: Callable[[], Lineage], name: str, arguments: Mapping[str, Any], index: int
    ) -> tuple[CallResult, str]:
        """Return the result of a call and the key of the state after it.

        Args:
            state: the key of the state before the call.
            lineage: returns how that state is made; called if the worker holds another one.
            index: the number of calls before this one in the trajectory.

        Raises:
            ToolFileError, SeedError: the tools or the tables of the project cannot be used.
        """
        with self._lock:
            request = _Request(
                source=self._source, load=self._load(state, lineage), name=name, arguments=arguments, index=index
            )
            outcome = self._compute(_call, request)
            if outcome.result is not None:
                result, self.held = outcome.result, next_key(state, outcome.result.delta)
                return result, self.held
            assert outcome.failure is not None
            self.held = self._base = ""
            reason = outcome.failure.reason
            detail = f"{name} ended with {outcome.failure.detail}"
            if reason in ("wall_time", "cpu_time"):
                detail = f"{name} gave no result within {self._limits.wall_seconds:g} s"
            return CallResult(text=f"Error: {detail}", problem=_PROBLEMS.get(reason, Problem.CRASHED), detail=detail), state

    def tables(self, state: str, lineage: Callable[[], Lineage]) -> dict[str, list[dict[str, Any]]]:
        """Return all rows of a state by table."""
        with self._lock:
            tables: dict[str, list[dict[str, Any]]] = _result(
                self._compute(_tables, _Request(source=self._source, load=self._load(state, lineage)))
            )
            self.held = state
            return tables

    def close(self) -> None:
        """End the worker."""
        self._worker.kill()
        self.held = self._base = ""

    def _load(self, state: str, lineage: Callable[[], Lineage]) -> _Load | None:
        if self.held == state:
            return None
        found = lineage()
        image = None if found.base == self._base else found.image()
        self._base = found.base
        return _Load(image=image, deltas=found.deltas)

    def _compute(self, function: Callable[[_Request], Any], request: _Request) -> Outcome[_Request, Any]:
        return self._worker.compute(function, request, self._limits, None)


def _result(outcome: Outcome[_Request, Any]) -> Any:
    if outcome.failure is not None:
        raise RuntimeError(f"a tool process ended: {outcome.failure.detail}")
    return outcome.result


_held: tuple[_Source, ToolHost] | None = None  # of a worker process
_base = b""  # the initial image that it received last


def _host(request: _Request) -> ToolHost:
    global _held, _base
    if _held is None or _held[0] != request.source:
        source = request.source
        _held = (
            source,
            ToolHost(source.path, start=source.start, seed=source.seed, max_characters=source.max_characters),
        )
    host = _held[1]
    if request.load is not None:
        _base = _base if request.load.image is None else request.load.image
        host.load(apply_deltas(_base, request.load.deltas) if request.load.deltas else _base)
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
