"""The expected end of a reproduction while it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Forecast:
    """Expect an end: the estimates of the stages that are left, times how much longer the finished ones took.

    Args:
        estimates: expected seconds of the stages to come by name; 0 if unknown.
    """

    def __init__(self, estimates: Mapping[str, float]) -> None:
        self._left = dict(estimates)
        self._estimated = self._taken = 0.0

    def finished(self, stage: str, seconds: float) -> None:
        """Take a stage off; 0 seconds if it did not run."""
        estimate = self._left.pop(stage, 0.0)
        if estimate and seconds:
            self._estimated += estimate
            self._taken += seconds

    def seconds_left(self) -> float:
        """Return the expected seconds of the stages that are not finished."""
        factor = self._taken / self._estimated if self._estimated else 1.0
        return factor * sum(self._left.values())

    def line(self, stage: str) -> str:
        """Return what to add to the line of a stage that begins: its time and the expected end of all."""
        if not self._left.get(stage):
            return ""
        factor = self._taken / self._estimated if self._estimated else 1.0
        end = time.strftime("%H:%M", time.localtime(time.time() + self.seconds_left()))
        return f" (about {clock_time(factor * self._left[stage])}; all done at about {end})"


def clock_time(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"
