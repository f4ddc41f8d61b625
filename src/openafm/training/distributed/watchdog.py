"""A watchdog ends a process that makes no progress and writes where it hangs, so that the launcher can restart it.

A collective waits for a rank that died, a read for a file server that is gone: neither fails by itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openafm.core.config import Config
from openafm.training.observers import Observer, Phase, StepResult

EXIT_CODE = 75
"""The exit code of a process that the watchdog ended: EX_TEMPFAIL, a failure that a retry may overcome."""

DUMP_SECONDS = 10.0
"""The most time that writing the last collectives may take."""


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig(Config):
    """Timeouts of a run: `seconds` for a step, `start_seconds` for an evaluation and for the start up to the first step."""

    seconds: float = 600.0
    start_seconds: float = 1800.0

    def __post_init__(self) -> None:
        self.require(self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
        self.require(
            self.start_seconds >= self.seconds,
            f"start_seconds must be at least seconds ({self.seconds}), got {self.start_seconds}",
        )


class Watchdog(Observer):
    """End the process if no heartbeat comes in time. Time in which the process is suspended does not count."""

    def __init__(self, config: WatchdogConfig, report: Path, on_wait: Callable[[], None]) -> None:
        self._config, self._report, self._on_wait = config, report, on_wait
        self._timeout_s, self._num_heartbeats = config.start_seconds, 0
        self._closed = threading.Event()

    def heartbeat(self, *, is_long: bool = False) -> None:
        """Restart the timeout: `seconds` until the next heartbeat, or `start_seconds` if `is_long`."""
        self._timeout_s = self._config.start_seconds if is_long else self._config.seconds
        self._num_heartbeats += 1

    def on_step(self, result: StepResult) -> None:
        self.heartbeat()

    def on_phase_start(self, phase: Phase) -> None:
        if phase == "evaluation":
            self.heartbeat(is_long=True)

    def on_phase_end(self, phase: Phase) -> None:
        if phase == "evaluation":
            self.heartbeat()

    def watch(self) -> None:
        """Check for heartbeats until closed; end the process after a timeout."""
        interval_s = min(1.0, self._config.seconds / 20)
        waited_s, num_heartbeats, last_s = 0.0, 0, time.monotonic()
        while not self._closed.wait(interval_s):
            now_s = time.monotonic()
            waited_s += min(now_s - last_s, 2 * interval_s)
            last_s = now_s
            if num_heartbeats != self._num_heartbeats:
                waited_s, num_heartbeats = 0.0, self._num_heartbeats
            elif waited_s >= self._timeout_s:
                self._end(waited_s)
            elif waited_s >= self._timeout_s / 2:
                self._report_wait()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _report_wait(self) -> None:
        """Call `on_wait`. Its errors, such as a full disk, must not stop the watchdog."""
        with contextlib.suppress(Exception):
            self._on_wait()

    def _end(self, waited_s: float) -> None:
        """Write the stacks of all threads and exit without cleanup, which could hang as well."""
        try:
            self._report_wait()
            heading = f"process {os.getpid()} made no progress for {waited_s:.0f} s ({time.ctime()}); stacks:\n".encode()
            os.write(2, b"openafm: " + heading)
            faulthandler.dump_traceback(2)
            with self._report.open("ab", buffering=0) as file:
                file.write(heading)
                faulthandler.dump_traceback(file)
            threading.Timer(DUMP_SECONDS, os._exit, (EXIT_CODE,)).start()  # the recorder's lock may be held by the hang
            with contextlib.suppress(Exception):
                self._report.with_suffix(".collectives.json").write_bytes(recorded_collectives())
        finally:
            os._exit(EXIT_CODE)


def recorded_collectives() -> bytes:
    """Return the last collectives of this process as JSON, from torch's flight recorder; empty if it has none.

    NCCL records them by default; `TORCH_FR_BUFFER_SIZE` sets how many.
    """
    torch = sys.modules.get("torch")  # imported by the run, which the watchdog must not delay
    library = None if torch is None else torch._C._distributed_c10d
    dump = getattr(library, "_dump_nccl_trace_json", None) or getattr(library, "_dump_fr_trace_json", None)
    return b"" if dump is None else bytes(dump())


@contextlib.contextmanager
def watchdog(config: WatchdogConfig | None, report: Path, on_wait: Callable[[], None]) -> Iterator[Watchdog]:
    """Watch the block; the first heartbeat may take `start_seconds`. A config of None switches the watchdog off.

    Stacks are appended to `report`, and the last collectives are written beside it. `on_wait` is called in another thread
    once half of a timeout has passed.
    """
    watching = Watchdog(config or WatchdogConfig(), report, on_wait)
    if config is not None:
        threading.Thread(target=watching.watch, name="watchdog", daemon=True).start()
    try:
        yield watching
    finally:
        watching.close()
