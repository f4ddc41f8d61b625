"""SIGTERM for commands that serve until they are stopped."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process with 0 while the block runs, after open files, folders and sockets are closed.

    A server that handles SIGTERM itself may raise it again once it has stopped, as uvicorn does: it ends with 0 too. Outside
    the main thread Python allows no handlers; there the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
