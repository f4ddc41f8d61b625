"""What a step of an engine takes on this machine, by the number of its rows, learnt from the steps that it runs."""

from __future__ import annotations

import threading
from collections import deque

MOST_COUNTED = 32  # rows up to which every count has an estimate of its own
_WINDOW = 9  # steps remembered for each: half of them must be disturbed before the estimate is
_FORGOTTEN = 256  # steps after which a count that did not come again is not believed any more


class StepCosts:
    """Running estimates of a step's seconds by its rows: tokens of all its sequences together, each giving its logits.

    A step that serves several sequences counts once, under all rows in it. So an estimate is what the machine spends, not
    what one of those sequences waits for; a sequence that adds n rows to a step of m costs `seconds(m + n) - seconds(m)`.

    An estimate is the median of the latest steps of that count, and what is disturbed only ever takes longer: a step of more
    rows that took less time corrects those below it. Safe to share between threads.

    Attributes:
        latest_rows: of the last step recorded.
    """

    def __init__(self) -> None:
        self.latest_rows = 0
        self._num_steps = 0
        self._counts: dict[int, _Count] = {}  # by rows; all steps beyond those counted are one, in seconds for each row
        self._points: list[tuple[int, float]] | None = None  # rows and seconds, both rising; None when out of date
        self._lock = threading.Lock()

    def record(self, num_rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        counted = num_rows if num_rows <= MOST_COUNTED else MOST_COUNTED + 1
        with self._lock:
            self.latest_rows, self._num_steps = num_rows, self._num_steps + 1
            if counted not in self._counts:
                self._counts[counted] = _Count()
            self._counts[counted].add(seconds * counted / num_rows, self._num_steps)
            self._points = None

    def seconds(self, num_rows: int) -> float | None:
        """What a step of so many rows takes: never less than fewer rows, interpolated; None while nothing is known."""
        if not num_rows:
            return 0.0
        with self._lock:
            if self._points is None:
                self._points = self._rising()
            points = self._points
        below_rows, below = 0, 0.0
        for rows, seconds in points:
            if num_rows == rows:
                return seconds
            if num_rows < rows:
                return below + (seconds - below) * (num_rows - below_rows) / (rows - below_rows)
            below_rows, below = rows, seconds
        return below * num_rows / below_rows if below_rows else None

    def _rising(self) -> list[tuple[int, float]]:
        points: list[tuple[int, float]] = []
        least = float("inf")
        for rows in sorted(self._counts, reverse=True):
            count = self._counts[rows]
            if rows <= MOST_COUNTED and count.last_seen < self._num_steps - _FORGOTTEN:
                continue
            least = min(least, count.median)
            points.append((rows, least))
        return points[::-1]


class _Count:
    """The latest steps of one count of rows."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_WINDOW)
        self.median, self.last_seen = 0.0, 0

    def add(self, seconds: float, number: int) -> None:
        if number - self.last_seen > _FORGOTTEN:
            self._latest.clear()
        self._latest.append(seconds)
        self.median, self.last_seen = sorted(self._latest)[(len(self._latest) - 1) // 2], number
