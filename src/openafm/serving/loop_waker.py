"""Wakeups of the event loop by worker threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class LoopWaker:
    """Set events of an event loop from other threads.

    A wakeup is a write to a socket, during which other threads take the interpreter. All events since the last wakeup need
    one: the answers that a decode step continues wake the loop together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._events: deque[asyncio.Event] = deque()
        self._is_pending = False

    def set(self, event: asyncio.Event) -> None:
        """Set an event soon, in the thread of the loop."""
        self._events.append(event)  # before the check: `_set_all` sets all events that it finds afterwards
        if not self._is_pending:
            self._is_pending = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
                self.loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        self._is_pending = False
        while self._events:
            self._events.popleft().set()
