"""Notice in a worker that the launcher has died: save, end, and do not wait for it."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

POLL_SECONDS = 1.0


class LauncherWatch:
    """Watch the launcher while a worker runs. If the launcher dies, the worker gets SIGUSR1, which saves and ends the run.

    The launchers of other nodes then return the exit code of a preemption, on which the command is repeated.

    torch's agent code in a worker waits without end for a dead launcher to read the worker's result. So the worker exits
    directly once its work is done.
    """

    def __init__(self, launcher: int) -> None:
        self._launcher, self._lock = launcher, threading.Lock()
        self._exit_code: int | None = None
        self._is_dead = False
        threading.Thread(target=self._watch, name="launcher watch", daemon=True).start()

    def run(self, work: Callable[[], int]) -> int:
        """Return the exit code of `work`; exit with it if the launcher has died."""
        code = work()
        with self._lock:
            self._exit_code = code
            if self._is_dead:
                _exit(code)
        return code

    def _watch(self) -> None:
        wait_for_exit(self._launcher)
        with self._lock:
            self._is_dead = True
            if self._exit_code is not None:
                _exit(self._exit_code)
        os.write(2, b"openafm: the launcher has died; saving and ending\n")
        os.kill(os.getpid(), getattr(signal, "SIGUSR1", signal.SIGTERM))


def _exit(code: int) -> None:
    sys.stdout.flush()
    os._exit(code)


def wait_for_exit(process: int) -> None:
    """Wait until a process has ended that need not be a child of this one."""
    if hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            return
        except OSError:
            pass  # a kernel without pidfd_open
        else:
            try:
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)
            return
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(POLL_SECONDS)
