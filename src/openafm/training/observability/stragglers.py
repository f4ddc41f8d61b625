"""Name ranks whose steps take much longer than those of the others.

A step ends for all ranks at the same time, so the measure is the time until a rank reaches the sum of losses: its wait for
data, forward and backward. Ranks that exchange states or weights in every layer (`shard`, `expert`, `track`) wait for each
other there; all ranks of the group of a slow one are then slow.
"""

from __future__ import annotations

import socket
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.core.config import Config
from openafm.training.observers import Observer, StepResult

if TYPE_CHECKING:
    from openafm.training.distributed.processes import Processes

MIN_DIFFERENCE_S = 0.01
"""Smaller differences are those of the clock and the scheduler."""


@dataclass(frozen=True, kw_only=True)
class StragglerConfig(Config):
    """Compare the ranks every N steps; one that takes `ratio` times the median is named."""

    every_steps: int = 100
    ratio: float = 1.5

    def __post_init__(self) -> None:
        self.require(self.every_steps > 0, f"every_steps must be at least 1, got {self.every_steps}")
        self.require(self.ratio > 1, f"ratio must be above 1, got {self.ratio}")


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """The mean seconds of a step on one rank, and its machine."""

    host: str
    seconds: float


class StragglerReporter(Observer):
    """Note slow ranks at the config's interval."""

    def __init__(self, config: StragglerConfig, processes: Processes, note: Callable[[str], None]) -> None:
        self._config, self._processes, self._note = config, processes, note
        self._seconds, self._num_steps = 0.0, 0

    def on_step(self, result: StepResult) -> None:
        self._seconds += result.local_seconds
        self._num_steps += 1
        if self._processes.world == 1 or result.step % self._config.every_steps:
            return
        mine = RankTime(host=socket.gethostname(), seconds=self._seconds / self._num_steps)
        self._seconds, self._num_steps = 0.0, 0
        for line in slow_ranks(self._processes.all_gather(mine), self._config.ratio):
            self._note(f"step {result.step:,}: {line}")


def slow_ranks(times: Sequence[RankTime], ratio: float) -> list[str]:
    """Return a line for each rank that takes `ratio` times the median."""
    median_s = statistics.median_low([time.seconds for time in times])
    return [
        f"rank {rank} ({time.host}) takes {time.seconds:.3f} s a step, {time.seconds / max(median_s, 1e-9):.1f} times the "
        f"median of {len(times)} ranks"
        for rank, time in enumerate(times)
        if time.seconds > ratio * median_s and time.seconds - median_s > MIN_DIFFERENCE_S
    ]
