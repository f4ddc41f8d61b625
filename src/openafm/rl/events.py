"""What each part of a run spends its time on, as lines of JSON, and their export as a Chrome trace.

events/  updater.jsonl  generator-4711.jsonl ...
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from openafm.core.chrome_trace import Slice
from openafm.core.files import room_for

FOLDER, UPDATER = "events", "updater"
WAITING = ("wait",)
"""Names of the events in which a part is idle."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A span of wall time, in seconds since the epoch. `count` is the number of tokens or samples, 0 if it has none."""

    part: str
    name: str
    start: float
    stop: float
    count: int = 0


class EventLog:
    """Append the events of one part; each line is written at once, so that a killed process loses none."""

    def __init__(self, folder: Path, part: str) -> None:
        self._part, self._path = part, folder / FOLDER / f"{part}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def span(self, name: str) -> Iterator[list[int]]:
        """Record the block as an event. The caller may append counts to the yielded list."""
        start, counts = time.time(), list[int]()
        yield counts
        self.add(name, start, time.time(), sum(counts))

    def add(self, name: str, start: float, stop: float, count: int = 0) -> None:
        """Record an event."""
        line = json.dumps(asdict(Event(part=self._part, name=name, start=start, stop=stop, count=count)))
        with room_for(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def read_events(folder: Path) -> list[Event]:
    """Return the events of all parts of a run, by start; lines that a killed process left unfinished are skipped."""
    events = []
    for path in sorted((folder / FOLDER).glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            events.append(Event(**json.loads(line)))
    return sorted(events, key=lambda event: event.start)


@dataclass(frozen=True, kw_only=True)
class PartTimes:
    """The time of one part: seconds by event name, and the seconds between its first and its last event."""

    part: str
    seconds: dict[str, float]
    wall: float
    tokens: int

    @property
    def idle_share(self) -> float:
        """Return the share of the wall time in which the part waited, from 0 to 1."""
        busy = sum(seconds for name, seconds in self.seconds.items() if name not in WAITING)
        return max(0.0, 1 - busy / self.wall) if self.wall else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens of the part per second of wall time."""
        return self.tokens / self.wall if self.wall else 0.0


def part_times(events: Sequence[Event]) -> list[PartTimes]:
    """Return the times of each part."""
    by_part: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_part[event.part].append(event)
    times = []
    for part, of_part in sorted(by_part.items()):
        seconds: defaultdict[str, float] = defaultdict(float)
        for event in of_part:
            seconds[event.name] += event.stop - event.start
        wall = max(event.stop for event in of_part) - min(event.start for event in of_part)
        tokens = sum(event.count for event in of_part)
        times.append(PartTimes(part=part, seconds=dict(seconds), wall=wall, tokens=tokens))
    return times


def seconds_per_update(events: Sequence[Event]) -> float | None:
    """Return the median wall time from the end of one update to the end of the next; None for fewer than two updates.

    A median leaves out interruptions of the run and the start of its processes.
    """
    ends = [event.stop for event in events if event.part == UPDATER and event.name == "update"]
    return statistics.median(after - before for before, after in pairwise(ends)) if len(ends) > 1 else None


def slices(events: Sequence[Event]) -> list[Slice]:
    """Return the events as slices of a Chrome trace: one row for each part."""
    return [
        Slice(row=event.part, name=event.name, start=event.start, stop=event.stop, arguments={"count": event.count})
        for event in events
    ]
