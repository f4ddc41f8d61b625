"""Measurement for the sections of native_runtime.py: sides alternate in short segments; times are summarized by quantiles.

On one thread, a time is CPU time of the process that computes, because other load on the machine affects it less; on more
threads it is wall time. The 12th percentile of many equal steps estimates the undisturbed time; the median is reported too.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, TypeVar

import numpy as np

PERCENTILE = 12
_SETTLE_S = 0.02  # for threads that spin before they sleep
T = TypeVar("T")
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Size of the benchmark: `--quick` or full.

    Attributes:
        num_layers: of the synthetic model.
        folder: where synthetic bundles and the peers' files are kept.
        peer_python: the interpreter that has llama_cpp, and onnxruntime where that is compared with.
        rounds, steps: of decoding; every side runs `steps` steps in a round.
        prefill_rounds: rounds of prefills.
        prefill_tokens: of a prompt, by number of threads.
        contexts: tokens before the ones that are decoded, for `long_context`.
        answer_tokens: of a generated answer.
        starts: processes started.
    """

    is_quick: bool
    num_layers: int
    folder: Path
    peer_python: str
    rounds: int
    steps: int
    prefill_rounds: int
    prefill_tokens: Mapping[int, int]
    contexts: tuple[int, ...]
    answer_tokens: int
    starts: int


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of equal pieces of work: wall time and CPU time."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    def seconds(self, num_threads: int) -> tuple[float, ...]:
        """CPU seconds for one thread, wall seconds for more."""
        return self.cpu_s if num_threads == 1 else self.wall_s


def timed(work: Callable[[], object], times: int = 1) -> Times:
    """Run `work` `times` times and time each."""
    wall_s, cpu_s = [], []
    for _ in range(times):
        wall, cpu = perf_counter(), process_time()
        work()
        wall_s.append(perf_counter() - wall)
        cpu_s.append(process_time() - cpu)
    return Times(wall_s=tuple(wall_s), cpu_s=tuple(cpu_s))


def alternate(sides: Mapping[str, Callable[[], Times]], rounds: int, num_threads: int) -> dict[str, list[float]]:
    """Seconds of every side. The sides alternate, and the first side changes with the round. One more round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, rounds):
        for name, side in sorted(sides.items(), reverse=bool(number % 2)):
            sleep(_SETTLE_S)
            times = side()
            if number >= 0:
                seconds[name] += times.seconds(num_threads)
    return seconds


def undisturbed(seconds: Iterable[float]) -> float:
    """Estimate the undisturbed time: the 12th percentile."""
    return float(np.percentile(list(seconds), PERCENTILE))


def median(seconds: Iterable[float]) -> float:
    return float(np.median(list(seconds)))


def rounded(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")


def suffix(num_threads: int) -> str:
    """The suffix of a figure's key; empty for one thread."""
    return "" if num_threads == 1 else f"_{num_threads}_threads"


class Worker:
    """A process that reads JSON objects, one a line, and replies to each with one."""

    def __init__(self, *command: str | Path) -> None:
        # The worker's number of threads is part of a request or its own choice; this process's limit must not apply.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()} instead of an answer to {order}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid


def can_import(python: str, module: str) -> bool:
    """Whether this interpreter has a module."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    try:
        return subprocess.run([python, "-c", look], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
