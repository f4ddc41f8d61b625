"""Time that does not jump when the clock of the machine is set."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns the time in seconds since 1970."""


def steady_clock() -> Clock:
    """Return a clock that starts at the time of the machine and then only advances, whatever is done to that time."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
