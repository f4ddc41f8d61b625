"""End a process that no longer gets anywhere, after it has told where it hangs, so that it can be started again.

A collective waits for a rank that never comes, a read for a file server that is gone: nothing fails, and nothing goes on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openafm.core.config import Config

EXIT_CODE = 75
"""Of a process that was ended here: the system's number for a failure that passes when one tries again."""


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig(Config):
    """A run hangs when no step ends within `seconds`; the start, up to the first step, and an evaluation may take
    `start_seconds`."""

    seconds: float = 600.0
    start_seconds: float = 1800.0

    def __post_init__(self) -> None:
        self.require(self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
        self.require(
            self.start_seconds >= self.seconds,
            f"start_seconds must be at least seconds ({self.seconds}), got {self.start_seconds}",
        )


class Watchdog:
    """Told of every sign of life. Time in which the whole process was stopped (Ctrl-Z, a laptop asleep) does not count."""

    def __init__(self, config: WatchdogConfig, report: Path, on_wait: Callable[[], None]) -> None:
        self._config, self._report, self._on_wait = config, report, on_wait
        self._limit_s, self._num_signs = config.start_seconds, 0
        self._closed = threading.Event()

    def alive(self) -> None:
        """Something was done; the next thing may take `seconds`."""
        self._limit_s = self._config.seconds
        self._num_signs += 1

    def alive_before_long_work(self) -> None:
        """Something was done; the next thing may take `start_seconds`."""
        self._limit_s = self._config.start_seconds
        self._num_signs += 1

    def watch(self) -> None:
        """Until closed, or until there is no sign of life for too long: then end the process."""
        interval_s = min(1.0, self._config.seconds / 20)
        waited_s, num_signs, last_s = 0.0, 0, time.monotonic()
        while not self._closed.wait(interval_s):
            now_s = time.monotonic()
            waited_s += min(now_s - last_s, 2 * interval_s)
            last_s = now_s
            if num_signs != self._num_signs:
                waited_s, num_signs = 0.0, self._num_signs
            elif waited_s >= self._limit_s:
                self._end(waited_s)
            elif waited_s >= self._limit_s / 2:
                self._write_down()

    def close(self) -> None:
        """The work is done."""
        self._closed.set()

    def _write_down(self) -> None:
        """Tell of the wait. A full disk, where it cannot be told, must not end the watch."""
        with contextlib.suppress(Exception):
            self._on_wait()

    def _end(self, waited_s: float) -> None:
        """Dump the stacks of all threads and exit at once: what hangs could not be cleaned up."""
        try:
            self._write_down()
            heading = f"process {os.getpid()} did nothing for {waited_s:.0f} s ({time.ctime()}); it hangs here:\n".encode()
            os.write(2, b"openafm: " + heading)
            faulthandler.dump_traceback(2)
            with self._report.open("ab", buffering=0) as file:
                file.write(heading)
                faulthandler.dump_traceback(file)
        finally:
            os._exit(EXIT_CODE)


@contextlib.contextmanager
def watchdog(config: WatchdogConfig | None, report: Path, on_wait: Callable[[], None]) -> Iterator[Watchdog]:
    """Watch over the block; the first sign of life may take `start_seconds`. None watches over nothing.

    Stacks are appended to `report`; `on_wait` is called, in another thread, while there has been none for half the time.
    """
    dog = Watchdog(config or WatchdogConfig(), report, on_wait)
    if config is not None:
        threading.Thread(target=dog.watch, name="watchdog", daemon=True).start()
    try:
        yield dog
    finally:
        dog.close()
