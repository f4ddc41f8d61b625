"""CPU time of the processes that commands start, those that outlive their parent included."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import time
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # prctl of Linux
_SECONDS_TO_END = 60.0


class ChildTime:
    """CPU time of the children of this process within a `with` block, and of their descendants.

    The system counts the time of a process for the parent that waits for it. On Linux this process becomes the parent of
    descendants whose own parent has ended, such as a fork server with its workers. Elsewhere these are left out.

    Attributes:
        seconds: after the block, the CPU time of the children that have ended.
    """

    def __enter__(self) -> ChildTime:
        self.seconds = 0.0
        self._others = set(children(os.getpid()))
        self._before = _cpu_of_children()
        _adopt_orphans(True)
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + _SECONDS_TO_END
        while self._await_orphans() and time.monotonic() < deadline:
            time.sleep(0.02)
        _adopt_orphans(False)
        self.seconds = _cpu_of_children() - self._before

    def _await_orphans(self) -> bool:
        """Wait for the orphans that have ended; return whether others still run."""
        orphans = set(children(os.getpid())) - self._others
        for process in orphans:
            with contextlib.suppress(ChildProcessError):  # another thread has waited for it
                os.waitpid(process, os.WNOHANG)
        return bool(orphans)


def _adopt_orphans(adopts: bool) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def children(process: int) -> list[int]:
    """Return the children of a process; none where the system does not list them."""
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return sorted(int(child) for thread in threads for child in (thread / "children").read_text().split())
    except OSError:  # it has ended
        return []
