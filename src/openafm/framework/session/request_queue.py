"""The order of a session's requests: one at a time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from openafm.framework.errors import ConcurrentRequestsError

WhenBusy: TypeAlias = Literal["raise", "wait"]


@dataclass(kw_only=True, eq=False)
class Turnstile:
    """One request's place in the line."""

    is_background: bool = False  # prewarming: a request after it waits, whatever the rule
    is_pulled: bool = False  # goes on only while its caller asks for more, and so does not end by itself
    cancelled: threading.Event = field(default_factory=threading.Event)  # set by anyone: end soon, undo everything
    finished: Future[None] = field(default_factory=Future)  # the session is free for the next

    @property
    def is_ending(self) -> bool:
        return self.is_background or (self.cancelled.is_set() and not self.is_pulled)


class RequestQueue:
    """Lets requests of one session pass one after the other, in the order in which they came.

    Args:
        when_busy: a request that comes while another is answered raises `ConcurrentRequestsError`, or waits. It always waits
            for one that is undoing itself.
    """

    def __init__(self, when_busy: WhenBusy) -> None:
        if when_busy not in ("raise", "wait"):
            raise ValueError(f"'when_busy' must be 'raise' or 'wait', got {when_busy!r}")
        self._when_busy = when_busy
        self._last: Turnstile | None = None
        self._active: Turnstile | None = None
        self._lock = threading.Lock()

    @property
    def active(self) -> Turnstile | None:
        """The request that is being answered."""
        return self._active

    async def enter(self, request: Turnstile) -> None:
        """Wait until it is this request's turn; `leave` must follow.

        Raises:
            ConcurrentRequestsError: the session is busy, and requests do not wait.
        """
        previous = self.line_up(request)
        if previous is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(previous))
            except BaseException:  # cancelled, or its loop is gone
                self.give_up(request, previous)
                raise
        self._active = request

    def enter_blocking(self, request: Turnstile) -> None:
        """`enter`, in a thread that may block."""
        self.wait_blocking(request, self.line_up(request))

    def wait_blocking(self, request: Turnstile, previous: Future[None] | None) -> None:
        """The second half of `enter_blocking`: wait for what `line_up` gave."""
        if previous is not None:
            try:
                previous.result()
            except BaseException:  # an interrupt
                self.give_up(request, previous)
                raise
        self._active = request

    def give_up(self, request: Turnstile, previous: Future[None] | None) -> None:
        """Give up a place in the line before it is this request's turn: who comes next waits for `previous`."""
        if previous is None:
            request.finished.set_result(None)
        else:
            previous.add_done_callback(lambda _: request.finished.set_result(None))

    def leave(self, request: Turnstile) -> None:
        """Let the next one pass."""
        self._active = None
        request.finished.set_result(None)

    def line_up(self, request: Turnstile) -> Future[None] | None:
        """The first half of entering: take a place in the line. What to wait for, if anything.

        Raises:
            ConcurrentRequestsError: the session is busy, and requests do not wait.
        """
        with self._lock:
            previous = self._last
            is_busy = previous is not None and not previous.finished.done()
            if previous is not None and is_busy and not previous.is_ending and self._when_busy == "raise":
                raise ConcurrentRequestsError(
                    "this session is answering another request; await that one first, use a session for each,"
                    " or let requests wait with when_busy='wait'"
                )
            self._last = request
            return previous.finished if previous is not None and is_busy else None
