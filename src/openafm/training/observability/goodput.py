"""Goodput: the share of a run's wall time spent in steps that count, and the causes of the rest.

The report states 93 % on 8,192 chips (2.2). Every process of a run appends its accumulated times to `goodput.jsonl`; its
last line counts, so a killed process needs no final write. Time that no process accounts for passed between a death and the
next start.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from openafm.core.files import atomic_file, room_for
from openafm.training.observers import Observer, Phase, StepResult

FILE = "goodput.jsonl"
PRODUCTIVE = "productive"

FLUSH_SECONDS = 0.1
"""The most time that a killed process leaves unaccounted; it then counts as lost to the next start."""

COMPACT_LINES = 2_000
"""Outdated lines are removed after this many: when a process starts, and every few minutes."""

Cause = Literal["start", "checkpoint", "rework", "data_wait", "hang", "evaluation", "other"]
CAUSES: tuple[Cause, ...] = ("start", "checkpoint", "rework", "data_wait", "hang", "evaluation", "other")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The wall time of a run since its first start, in seconds; `lost` has every cause.

    Steps repeated after a failure are rework. Time between a death and the next start counts as `start`. Time after a run
    has ended or was stopped does not count.
    """

    productive: float = 0.0
    lost: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    starts: int = 0

    @property
    def wall(self) -> float:
        """Return the sum of the productive and lost seconds."""
        return self.productive + sum(self.lost.values())

    @property
    def share(self) -> float:
        """Return productive over wall time, from 0 to 1; 0 before the first step."""
        return self.productive / self.wall if self.wall else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return seconds and `goodput` for JSON."""
        lost = {cause: round(seconds, 3) for cause, seconds in self.lost.items()}
        return {
            "goodput": round(self.share, 6),
            "productive_seconds": round(self.productive, 3),
            "wall_seconds": round(self.wall, 3),
            "lost_seconds": lost,
            "starts": self.starts,
        }

    def scalars(self) -> dict[str, float]:
        """Return the share and the seconds lost to each cause, for the log."""
        return {"goodput": self.share, **{f"lost_seconds/{cause}": seconds for cause, seconds in self.lost.items()}}

    def __str__(self) -> str:
        """Return a line as in `goodput 93.1 % of 1,203 s in 9 starts; lost: start 3.8 %, rework 2.1 %`."""
        shares = {cause: seconds / self.wall for cause, seconds in self.lost.items() if seconds}
        parts = [f"{cause} {100 * share:.1f} %" for cause, share in sorted(shares.items(), key=lambda item: -item[1])]
        starts = f"{self.starts} start{'s' * (self.starts != 1)}"
        return f"goodput {100 * self.share:.1f} % of {self.wall:,.0f} s in {starts}; lost: {', '.join(parts) or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class ProcessTimes:
    """The times of one process of a run: `begun` in seconds since the epoch, `seconds` by cause, the last step so far.

    `ended` is True if the process reached the end of the run or was stopped, False if it was killed.
    """

    begun: float
    seconds: dict[str, float]
    step: int
    ended: bool = False

    @property
    def until(self) -> float:
        return self.begun + sum(self.seconds.values())


class GoodputRecorder(Observer):
    """Record what this process spends its time on, next to the records of earlier processes.

    Time outside of phases and steps counts as `start` before the first of them, and as `other` after. Without a path nothing
    is written: the time of other ranks shows as waiting of the main one.

    Before `open`, only `write_waiting` writes, and only appends: another process may hold the folder.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._past: list[ProcessTimes] = []
        self._last_step = 0
        self._begun, self._marked_s = time.time(), time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._written_s = -FLUSH_SECONDS
        self._lock = threading.Lock()  # the watchdog's thread writes during a hang
        self._num_lines: int | None = None  # None until the recorder is opened

    def open(self) -> None:
        """Read the records of earlier processes. The caller holds the lock of the folder."""
        past = [] if self._path is None else read_process_times(self._path)
        with self._lock:
            self._past = [process for process in past if process.begun != self._begun]
            self._last_step = max((process.step for process in self._past), default=0)
            self._num_lines = 0
        if not self._past:
            self.write_waiting("start")  # a process killed before its first step has lost time too

    def on_phase_start(self, phase: Phase) -> None:
        self._spend("other" if self._seconds else "start")

    def on_phase_end(self, phase: Phase) -> None:
        self._spend(phase)

    def on_step(self, result: StepResult) -> None:
        """Count the time since the last phase as productive, or as rework if an earlier process did this step."""
        is_rework, self._last_step = result.step <= self._last_step, max(result.step, self._last_step)
        self._spend("rework" if is_rework else PRODUCTIVE)

    def write_waiting(self, cause: Cause) -> None:
        """Write a line that counts the current wait as `cause`; the next line replaces it. Thread-safe."""
        with self._lock:
            waited_s = self._seconds.get(cause, 0.0) + time.perf_counter() - self._marked_s
            self._write(self._seconds | {cause: waited_s}, ended=False)

    def close(self) -> None:
        """Record the end of the run, after its last checkpoint is written. Later time does not count as lost."""
        if self._seconds:
            self._spend("checkpoint")
            with self._lock:
                self._write(self._seconds, ended=True)

    @property
    def goodput(self) -> Goodput:
        """Return the goodput of all processes so far."""
        if not self._seconds:
            return goodput(self._past)
        return goodput([*self._past, self._times(self._seconds, ended=False)])

    def _spend(self, cause: str) -> None:
        with self._lock:
            now_s = time.perf_counter()
            self._seconds[cause] = self._seconds.get(cause, 0.0) + now_s - self._marked_s
            self._marked_s = now_s
            if now_s - self._written_s >= FLUSH_SECONDS:
                self._written_s = now_s
                self._write(self._seconds, ended=False)

    def _times(self, seconds: dict[str, float], ended: bool) -> ProcessTimes:
        return ProcessTimes(begun=self._begun, seconds=dict(seconds), step=self._last_step, ended=ended)

    def _write(self, seconds: dict[str, float], ended: bool) -> None:
        """Append one line in a single system call, so that a killed process leaves whole lines."""
        if self._path is None:
            return
        line = _line(self._times(seconds, ended))
        with room_for(self._path):
            if self._num_lines is not None and self._num_lines % COMPACT_LINES == 0:
                with atomic_file(self._path) as file:
                    file.writelines([*map(_line, self._past), line])
            else:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab", buffering=0) as file:
                    file.write(line)
        self._num_lines = None if self._num_lines is None else self._num_lines + 1


def goodput(processes: Sequence[ProcessTimes]) -> Goodput:
    """Return the goodput of the processes of a run, given in the order of their starts."""
    lost: dict[Cause, float] = {cause: _sum_of(cause, processes) for cause in CAUSES}
    for before, after in pairwise(processes):
        if not before.ended:
            lost["start"] += max(0.0, after.begun - before.until)
    return Goodput(productive=_sum_of(PRODUCTIVE, processes), lost=lost, starts=len(processes))


def _sum_of(cause: str, processes: Sequence[ProcessTimes]) -> float:
    return sum(process.seconds.get(cause, 0.0) for process in processes)


def read_process_times(path: Path) -> list[ProcessTimes]:
    """Return the times of each process of a run, in the order of their starts; unreadable lines are skipped."""
    by_process: dict[float, ProcessTimes] = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            times = _parse(line)
            if times is not None:
                by_process[times.begun] = times
    return sorted(by_process.values(), key=lambda times: times.begun)


def _parse(line: bytes) -> ProcessTimes | None:
    try:
        return ProcessTimes(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _line(times: ProcessTimes) -> bytes:
    values = asdict(times)
    values["seconds"] = {cause: round(seconds, 6) for cause, seconds in times.seconds.items()}
    return json.dumps(values).encode() + b"\n"
