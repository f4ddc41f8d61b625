"""Estimates of the seconds that a step of an engine takes, by the number of its rows, from the steps it has run."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque

# An entry of a step with at most this many tokens is a decode step or a verification; one with more is a prefill. Engines
# compute that many tokens of a sequence bit-identically to one at a time, and every such count has its own estimate.
MAX_DECODE_TOKENS = 32
_WINDOW = 9  # samples of a median
_EXPIRY = 512  # steps after which an estimate that was not renewed is ignored


class StepCosts:
    """Running estimates of a step's seconds by its rows: the tokens of all its sequences, with logits for each.

    A step that serves several sequences counts once, with all its rows. A sequence that adds n rows to a step of m costs
    `seconds(m + n) - seconds(m)`.

    An estimate is the median of the latest steps with that many rows. Disturbances only make steps slower, so a step of more
    rows that took less time lowers the estimates below it. Counts above `MAX_DECODE_TOKENS` share one estimate per row;
    they are mostly prefill, whose rows are cheaper, so they lower no other estimate. Safe to share between threads.

    Attributes:
        latest_rows: rows of the latest step.
    """

    def __init__(self) -> None:
        self.latest_rows = 0
        self._num_steps = 0
        self._counts: dict[int, _Samples] = {}  # by rows; larger steps share the last one, scaled to its rows
        self._points: tuple[list[int], list[float]] | None = None  # rows and seconds, ascending; None when out of date
        self._lock = threading.Lock()

    def record(self, num_rows: int, seconds: float) -> None:
        """Record the time of a step."""
        counted = num_rows if num_rows <= MAX_DECODE_TOKENS else MAX_DECODE_TOKENS + 1
        with self._lock:
            self.latest_rows, self._num_steps = num_rows, self._num_steps + 1
            if counted not in self._counts:
                self._counts[counted] = _Samples()
            self._counts[counted].add(seconds * counted / num_rows, self._num_steps)
            self._points = None

    def seconds(self, num_rows: int) -> float | None:
        """Return the estimate for a step of `num_rows`, interpolated between recorded counts; None without any record.

        It never decreases with the rows.
        """
        if not num_rows:
            return 0.0
        with self._lock:
            if self._points is None:
                self._points = self._ascending()
            points = self._points
        rows, taken = points
        if len(rows) == 1:
            return None
        if num_rows > MAX_DECODE_TOKENS < rows[-1]:
            return max(taken[-1], self._counts[rows[-1]].median * num_rows / rows[-1])
        upper = min(bisect_left(rows, num_rows), len(rows) - 1)  # beyond the last point, extrapolate the last segment
        slope = (taken[upper] - taken[upper - 1]) / (rows[upper] - rows[upper - 1])
        return taken[upper] + slope * (num_rows - rows[upper])

    def _ascending(self) -> tuple[list[int], list[float]]:
        rows, taken = [0], [0.0]
        least = float("inf")
        for num_rows in sorted(self._counts.keys() - {MAX_DECODE_TOKENS + 1}, reverse=True):
            count = self._counts[num_rows]
            if count.last_seen >= self._num_steps - _EXPIRY:
                least = min(least, count.median)
                rows.insert(1, num_rows)
                taken.insert(1, least)
        if beyond := self._counts.get(MAX_DECODE_TOKENS + 1):
            rows.append(MAX_DECODE_TOKENS + 1)
            taken.append(max(taken[-1], beyond.median))
        return rows, taken


class _Samples:
    """The latest steps with one count of rows."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_WINDOW)
        self.median, self.last_seen = 0.0, 0

    def add(self, seconds: float, number: int) -> None:
        if number - self.last_seen > _EXPIRY:
            self._latest.clear()
        self._latest.append(seconds)
        self.median, self.last_seen = sorted(self._latest)[(len(self._latest) - 1) // 2], number
