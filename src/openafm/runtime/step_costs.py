"""What a step of an engine takes on this machine, by the number of its rows, learnt from the steps that it runs."""

from __future__ import annotations

import statistics
import threading
from collections import deque

MOST_COUNTED = 32  # rows up to which every count has an estimate of its own
_WINDOW = 9  # steps remembered for each: half of them must be disturbed before the estimate is


class StepCosts:
    """Running estimates of a step's seconds by its rows: tokens of all its sequences together, each giving its logits.

    A step that serves several sequences counts once, under all rows in it. So an estimate is what the machine spends, not
    what one of those sequences waits for; a sequence that adds n rows to a step of m costs `seconds(m + n) - seconds(m)`.

    An estimate is the median of the latest steps of that count, and what is disturbed only ever takes longer: a step of more
    rows that took less time corrects those below it. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._latest: dict[int, deque[float]] = {}  # seconds by rows, and seconds for each row of all steps beyond
        self._lock = threading.Lock()
        self._points: list[tuple[int, float]] | None = None  # rows and seconds, both rising; None when out of date

    def record(self, num_rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if num_rows > MOST_COUNTED:
            num_rows, seconds = MOST_COUNTED + 1, seconds / num_rows
        with self._lock:
            self._latest.setdefault(num_rows, deque(maxlen=_WINDOW)).append(seconds)
            self._points = None

    def seconds(self, num_rows: int) -> float | None:
        """What a step of so many rows takes: never less than fewer rows, interpolated; None while nothing is known."""
        with self._lock:
            if not self._latest:
                return None
            if self._points is None:
                self._points = self._rising()
            points = self._points
        rows, seconds = points[-1]
        if num_rows >= rows:
            return seconds * num_rows / rows
        above = next(i for i, (rows, _) in enumerate(points) if num_rows < rows)
        (rows, seconds), (more_rows, more_seconds) = points[above - 1], points[above]
        return seconds + (more_seconds - seconds) * (num_rows - rows) / (more_rows - rows)

    def _rising(self) -> list[tuple[int, float]]:
        points: list[tuple[int, float]] = []
        least = float("inf")
        for rows in sorted(self._latest, reverse=True):
            scale = rows if rows > MOST_COUNTED else 1
            least = min(least, statistics.median_low(self._latest[rows]) * scale)
            points.append((rows, least))
        return [(0, 0.0), *reversed(points)]
