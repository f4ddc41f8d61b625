"""Admission of requests: a budget of bytes for keys and values, a limit of running answers, and a queue by priority."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from openafm.serving.errors import ApiError, bad_request

_SMOOTHING = 0.2  # weight of the latest request in the mean duration


@dataclass(order=True)
class _Waiter:
    priority: int
    number: int
    num_bytes: int = field(compare=False)
    num_answers: int = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)


class Admission:
    """Admit requests while memory and places are free; others wait in order of priority, then of arrival.

    Used by the thread of the event loop.

    Args:
        kv_bytes: budget for keys and values of the admitted requests.
        max_running: most answers at a time.
        max_waiting: most waiting requests.
        queue_seconds: longest wait.
    """

    def __init__(self, *, kv_bytes: int, max_running: int, max_waiting: int, queue_seconds: float) -> None:
        self.kv_bytes, self.max_running = kv_bytes, max_running
        self._max_waiting, self._queue_seconds = max_waiting, queue_seconds
        self.used_bytes = self.num_running = 0
        self._queue: list[_Waiter] = []
        self._numbers = itertools.count()
        self._mean_seconds = 1.0

    @property
    def num_waiting(self) -> int:
        return sum(not waiter.admitted.done() for waiter in self._queue)

    @contextlib.asynccontextmanager
    async def admitted(self, num_bytes: int, num_answers: int = 1, priority: int = 0) -> AsyncIterator[None]:
        """Run a block with `num_bytes` of memory and `num_answers` places. Higher priorities go first.

        Raises:
            ApiError: 400 if the request can never be admitted; 429 if the queue is full or the wait is too long.
        """
        if num_bytes > self.kv_bytes:
            raise bad_request(
                f"the request needs {num_bytes:,} bytes for keys and values, and the server has {self.kv_bytes:,}; lower"
                " max_tokens or n, or shorten the messages",
                param="max_tokens",
            )
        if num_answers > self.max_running:
            raise bad_request(f"n is {num_answers}; this server computes at most {self.max_running} at a time", param="n")
        await self._wait(num_bytes, num_answers, priority)
        started = time.monotonic()
        try:
            yield
        finally:
            self.used_bytes -= num_bytes
            self.num_running -= num_answers
            self._mean_seconds += _SMOOTHING * (time.monotonic() - started - self._mean_seconds)
            self._admit()

    async def _wait(self, num_bytes: int, num_answers: int, priority: int) -> None:
        future = asyncio.get_running_loop().create_future()
        waiter = _Waiter(-priority, next(self._numbers), num_bytes, num_answers, future)
        heapq.heappush(self._queue, waiter)
        self._admit()
        try:
            if not future.done() and self.num_waiting > self._max_waiting:
                raise self._overloaded("too many requests wait")
            async with asyncio.timeout(self._queue_seconds):
                await future
        except TimeoutError:
            if future.done() and not future.cancelled():  # admitted in the same turn of the event loop
                return
            raise self._overloaded(f"no memory became free within {self._queue_seconds:g} s") from None
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # admitted in the same turn of the event loop
                self.used_bytes -= num_bytes
                self.num_running -= num_answers
            raise
        finally:
            future.cancel()
            self._admit()

    def _admit(self) -> None:
        """Admit waiters from the front of the queue while they fit. Later ones do not overtake the first."""
        while self._queue:
            first = self._queue[0]
            if not first.admitted.done():
                if self.used_bytes + first.num_bytes > self.kv_bytes:
                    return
                if self.num_running + first.num_answers > self.max_running:
                    return
                self.used_bytes += first.num_bytes
                self.num_running += first.num_answers
                first.admitted.set_result(None)
            heapq.heappop(self._queue)

    def _overloaded(self, reason: str) -> ApiError:
        rounds = 1 + self.num_waiting / self.max_running
        return ApiError(
            429, f"the server is busy: {reason}; retry later", code="overloaded", retry_after=rounds * self._mean_seconds
        )


def default_kv_bytes() -> int:
    """Return a quarter of the physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


class TokenBucket:
    """A budget that refills at a constant rate up to one minute's worth. It may become negative. Thread-safe.

    Args:
        per_minute: units for each minute.
    """

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self._left, self._updated = per_minute, time.monotonic()
        self._lock = threading.Lock()

    def wait_seconds(self) -> float:
        """Return 0 if a unit is left, else the seconds until then."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self.per_minute, self._left + (now - self._updated) * self.per_minute / 60)
            self._updated = now
            return 0.0 if self._left >= 1 else (1 - self._left) * 60 / self.per_minute

    def take(self, amount: float) -> None:
        with self._lock:
            self._left -= amount
