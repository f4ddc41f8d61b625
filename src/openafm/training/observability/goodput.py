"""Goodput: which share of a run's wall time went into steps that count, and what the rest was lost to.

The report states 93 % on 8,192 chips (2.2). The ledger `goodput.jsonl` of a run's folder holds what each of its processes
did with its time, as sums that are written over and over while it lives: the last line of a process is its account, and
a process that was killed needs no last word. Time that no account holds passed between a death and the next start.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from openafm.core.files import atomic_file, room_for

FILE = "goodput.jsonl"
PRODUCTIVE = "productive"

FLUSH_SECONDS = 0.5
"""At most what a killed process loses of its account; that time then counts as lost to the next start."""

TIDY_LINES = 10_000
"""After so many, those that later ones have replaced are thrown away: once a process, and each hour and a half of it."""

Cause = Literal["start", "checkpoint", "rework", "data_wait", "hang", "evaluation", "other"]
CAUSES: tuple[Cause, ...] = ("start", "checkpoint", "rework", "data_wait", "hang", "evaluation", "other")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """The wall time of a run since its first start, in seconds; `lost` by cause, every cause named.

    Steps that are done again after a failure are rework. Time between a death and the next start is part of `start`;
    time after a run has ended, or was asked to, is part of nothing.
    """

    productive: float = 0.0
    lost: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    starts: int = 0

    @property
    def wall(self) -> float:
        """All of it, in seconds."""
        return self.productive + sum(self.lost.values())

    @property
    def share(self) -> float:
        """Goodput: productive time over wall time, from 0 to 1; 0 before anything was done."""
        return self.productive / self.wall if self.wall else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON: seconds, and `goodput` itself."""
        lost = {cause: round(seconds, 3) for cause, seconds in self.lost.items()}
        return {
            "goodput": round(self.share, 6),
            "productive_seconds": round(self.productive, 3),
            "wall_seconds": round(self.wall, 3),
            "lost_seconds": lost,
            "starts": self.starts,
        }

    def scalars(self) -> dict[str, float]:
        """For the log: the share, and the seconds lost to each cause so far."""
        return {"goodput": self.share, **{f"lost_seconds/{cause}": seconds for cause, seconds in self.lost.items()}}

    def __str__(self) -> str:
        """As in `goodput 93.1 % of 1,203 s in 9 starts; lost: start 3.8 %, rework 2.1 %`."""
        shares = {cause: seconds / self.wall for cause, seconds in self.lost.items() if seconds}
        parts = [f"{cause} {100 * share:.1f} %" for cause, share in sorted(shares.items(), key=lambda item: -item[1])]
        starts = f"{self.starts} start{'s' * (self.starts != 1)}"
        return f"goodput {100 * self.share:.1f} % of {self.wall:,.0f} s in {starts}; lost: {', '.join(parts) or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class Account:
    """One process of a run: `begun` in seconds since the epoch, what its seconds went into, and the furthest step so far.

    `ended` says that it was not killed: the run had come to its end, or was asked to stop.
    """

    begun: float
    seconds: dict[str, float]
    step: int
    ended: bool = False

    @property
    def until(self) -> float:
        return self.begun + sum(self.seconds.values())


class Ledger:
    """The account of this process, beside those of the processes before it.

    All time belongs to something: what is not spent on anything named is part of `start` up to the first thing that is, and
    `other` from then on. Without a path nothing is written, for the ranks whose time shows as the main one's waiting.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._past = [] if path is None else read_accounts(path)
        self._furthest = max((account.step for account in self._past), default=0)
        self._begun, self._marked_s = time.time(), time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._written_s = -FLUSH_SECONDS
        self._lock = threading.Lock()  # a watchdog writes while a step hangs
        self._num_lines = 0
        if not self._past:
            self.waiting("start")  # what is killed before its first step has lost time too

    @contextmanager
    def spending(self, cause: Cause) -> Iterator[None]:
        """The time in the block goes into `cause`."""
        self._spend("other" if self._seconds else "start")
        yield
        self._spend(cause)

    def step(self, step: int) -> None:
        """The time since the last block went into update number `step`: productive, or rework if it was done before."""
        done_before, self._furthest = step <= self._furthest, max(step, self._furthest)
        self._spend("rework" if done_before else PRODUCTIVE)

    def waiting(self, cause: Cause) -> None:
        """Write down as if all the time until now went into `cause`; what is written next corrects it. From any thread."""
        with self._lock:
            waited_s = self._seconds.get(cause, 0.0) + time.perf_counter() - self._marked_s
            self._write(self._seconds | {cause: waited_s}, ended=False)

    def close(self) -> None:
        """The run is at its end or was asked to stop, and its last checkpoint stands: no time after this is lost."""
        if self._seconds:
            self._spend("checkpoint")
            with self._lock:
                self._write(self._seconds, ended=True)

    @property
    def goodput(self) -> Goodput:
        """Of all processes so far."""
        if not self._seconds:
            return goodput(self._past)
        return goodput([*self._past, self._account(self._seconds, ended=False)])

    def _spend(self, what: str) -> None:
        with self._lock:
            now_s = time.perf_counter()
            self._seconds[what] = self._seconds.get(what, 0.0) + now_s - self._marked_s
            self._marked_s = now_s
            if now_s - self._written_s >= FLUSH_SECONDS:
                self._written_s = now_s
                self._write(self._seconds, ended=False)

    def _account(self, seconds: dict[str, float], ended: bool) -> Account:
        return Account(begun=self._begun, seconds=dict(seconds), step=self._furthest, ended=ended)

    def _write(self, seconds: dict[str, float], ended: bool) -> None:
        """In one call of the system, so that a killed process leaves whole lines; the system keeps them when it is gone."""
        if self._path is None:
            return
        line = _line(self._account(seconds, ended))
        with room_for(self._path):
            if self._num_lines % TIDY_LINES == 0:
                with atomic_file(self._path) as file:
                    file.writelines([*map(_line, self._past), line])
            else:
                with self._path.open("ab", buffering=0) as file:
                    file.write(line)
        self._num_lines += 1


def goodput(accounts: Sequence[Account]) -> Goodput:
    """Add up the processes of a run, in the order of their starts."""
    lost: dict[Cause, float] = {cause: _sum_of(cause, accounts) for cause in CAUSES}
    for before, after in pairwise(accounts):
        if not before.ended:
            lost["start"] += max(0.0, after.begun - before.until)
    return Goodput(productive=_sum_of(PRODUCTIVE, accounts), lost=lost, starts=len(accounts))


def _sum_of(what: str, accounts: Sequence[Account]) -> float:
    return sum(account.seconds.get(what, 0.0) for account in accounts)


def read_accounts(path: Path) -> list[Account]:
    """The accounts of a run, one for each process that did something; lines that cannot be read are lost time."""
    by_process: dict[float, Account] = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            account = _parse(line)
            if account is not None:
                by_process[account.begun] = account
    return sorted(by_process.values(), key=lambda account: account.begun)


def _parse(line: bytes) -> Account | None:
    try:
        return Account(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _line(account: Account) -> bytes:
    values = asdict(account)
    values["seconds"] = {what: round(seconds, 6) for what, seconds in account.seconds.items()}
    return json.dumps(values).encode() + b"\n"
