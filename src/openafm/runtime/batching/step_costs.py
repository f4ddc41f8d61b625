"""What a step of an engine takes on this machine, by the number of its rows, learned from the steps that it runs."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque

MOST_COUNTED = 32  # rows up to which every count has an estimate of its own
_WINDOW = 9  # steps remembered for each: half of them must be disturbed before the estimate is
_FORGOTTEN = 512  # steps after which a count that did not come again is not believed any more


class StepCosts:
    """Running estimates of a step's seconds by its rows: tokens of all its sequences together, each giving its logits.

    A step that serves several sequences counts once, under all rows in it. So an estimate is what the machine spends, not
    what one of those sequences waits for; a sequence that adds n rows to a step of m costs `seconds(m + n) - seconds(m)`.

    An estimate is the median of the latest steps of that count, and what is disturbed only ever takes longer: a step of more
    rows that took less time corrects those below it. Beyond the counted rows all take the same each; those are mostly of
    prompts and may be cheaper, so that they correct nothing. Safe to share between threads.

    Attributes:
        latest_rows: of the last step recorded.
    """

    def __init__(self) -> None:
        self.latest_rows = 0
        self._num_steps = 0
        self._counts: dict[int, _Count] = {}  # by rows; all steps beyond those counted are one, in seconds for each row
        self._points: tuple[list[int], list[float]] | None = None  # rows and seconds, rising; None when out of date
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
        """What a step of so many rows takes: never less than fewer rows; between and beyond counts that were seen, by lines
        through them. None while nothing is known.
        """
        if not num_rows:
            return 0.0
        with self._lock:
            if self._points is None:
                self._points = self._rising()
            points = self._points
        rows, taken = points
        if len(rows) == 1:
            return None
        if num_rows > MOST_COUNTED < rows[-1]:
            return max(taken[-1], self._counts[rows[-1]].median * num_rows / rows[-1])
        upper = min(bisect_left(rows, num_rows), len(rows) - 1)  # beyond the last, what lies before it goes on
        slope = (taken[upper] - taken[upper - 1]) / (rows[upper] - rows[upper - 1])
        return taken[upper] + slope * (num_rows - rows[upper])

    def _rising(self) -> tuple[list[int], list[float]]:
        rows, taken = [0], [0.0]
        least = float("inf")
        for num_rows in sorted(self._counts.keys() - {MOST_COUNTED + 1}, reverse=True):
            count = self._counts[num_rows]
            if count.last_seen >= self._num_steps - _FORGOTTEN:
                least = min(least, count.median)
                rows.insert(1, num_rows)
                taken.insert(1, least)
        if beyond := self._counts.get(MOST_COUNTED + 1):
            rows.append(MOST_COUNTED + 1)
            taken.append(max(taken[-1], beyond.median))
        return rows, taken


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
