"""The request queue of a session: one request at a time, in order of arrival."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from openafm.framework.errors import ConcurrentRequestsError

WhenBusy: TypeAlias = Literal["raise", "wait"]


@dataclass(kw_only=True, eq=False)
class QueuedRequest:
    """Hold the queue state of one request.

    Attributes:
        is_background: True for prewarming and saving; later requests wait for it, even with `when_busy="raise"`.
        is_pulled: True for a blocking stream. It advances only while its caller iterates, so cancelling does not end it.
        cancelled: set by any thread to stop the request and undo it.
        finished: done once the next request may start.
    """

    is_background: bool = False
    is_pulled: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    finished: Future[None] = field(default_factory=Future)

    @property
    def ends_soon(self) -> bool:
        """True if the request ends without further action of its caller."""
        return self.is_background or (self.cancelled.is_set() and not self.is_pulled)


class RequestQueue:
    """Run the requests of one session one after the other.

    Args:
        when_busy: what a request does while another one runs: `"raise"` raises `ConcurrentRequestsError`, `"wait"` waits.
            Both wait for a request that ends soon.
    """

    def __init__(self, when_busy: WhenBusy) -> None:
        if when_busy not in ("raise", "wait"):
            raise ValueError(f"'when_busy' must be 'raise' or 'wait', got {when_busy!r}")
        self._when_busy = when_busy
        self._last: QueuedRequest | None = None
        self._active: QueuedRequest | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def active(self) -> QueuedRequest | None:
        """The running request."""
        return self._active

    def reserve(self, request: QueuedRequest) -> Future[None] | None:
        """Append a request to the queue. Return the future to wait for before it may run, or None.

        Raises:
            ConcurrentRequestsError: another request is running and `when_busy` is `"raise"`, or it was running in another
                process when this one was forked.
        """
        if os.getpid() != self._process:
            if self._last is not None and not self._last.finished.done():
                raise ConcurrentRequestsError(
                    "this session was answering a request when its process was forked, which never ends in the fork;"
                    " create another session"
                )
            self._lock, self._process = threading.Lock(), os.getpid()  # another thread may have held it
        with self._lock:
            previous = self._last
            is_busy = previous is not None and not previous.finished.done()
            if previous is not None and is_busy and not previous.ends_soon and self._when_busy == "raise":
                raise ConcurrentRequestsError(
                    "this session is answering another request; await that one first, use one session per request,"
                    " or create the session with when_busy='wait'"
                )
            self._last = request
            return previous.finished if previous is not None and is_busy else None

    async def acquire(self, request: QueuedRequest) -> None:
        """Append a request and wait until it may run. The caller must call `release`.

        Raises:
            ConcurrentRequestsError: another request is running and `when_busy` is `"raise"`.
        """
        previous = self.reserve(request)
        if previous is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(previous))
            except BaseException:  # the task was cancelled, or its loop was closed
                self.abandon(request, previous)
                raise
        self._active = request

    def acquire_blocking(self, request: QueuedRequest) -> None:
        """`acquire` for code without an event loop."""
        self.wait_blocking(request, self.reserve(request))

    def wait_blocking(self, request: QueuedRequest, previous: Future[None] | None) -> None:
        """Wait for the future that `reserve` returned."""
        if previous is not None:
            try:
                previous.result()
            except BaseException:  # KeyboardInterrupt
                self.abandon(request, previous)
                raise
        self._active = request

    def abandon(self, request: QueuedRequest, previous: Future[None] | None) -> None:
        """Remove a request that has not started; the request after it waits for `previous` instead."""
        if previous is None:
            request.finished.set_result(None)
        else:
            previous.add_done_callback(lambda _: request.finished.set_result(None))

    def release(self, request: QueuedRequest) -> None:
        """End a request and start the next one."""
        self._active = None
        request.finished.set_result(None)
