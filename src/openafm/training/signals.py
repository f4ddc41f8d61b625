"""Stop requests by signal: SIGTERM, SIGUSR1 or Ctrl-C once saves and ends a run.

SIGUSR1 announces a preemption: the run ends with the exit code `PREEMPTED`, on which a scheduler repeats the command.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from openafm.training.observers import Observer

PREEMPTED = 75
"""The exit code after SIGUSR1: EX_TEMPFAIL, as that of the watchdog. The same command continues the run."""

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
)  # Windows has no SIGUSR1


class StopRequest(Observer):
    """Hold a stop request and the signal that caused it. The trainer checks it after every step."""

    def __init__(self) -> None:
        self.requested = False
        self.signal: int | None = None

    @property
    def requests_stop(self) -> bool:
        return self.requested

    def request(self, signal: int | None = None) -> None:
        self.requested, self.signal = True, signal


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM, SIGUSR1 and the first SIGINT into a stop request while the block runs; a second SIGINT interrupts.

    Outside the main thread Python allows no handlers; there only `request` stops the run.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def on_signal(number: int, _: FrameType | None) -> None:
        stop.request(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
