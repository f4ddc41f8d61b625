"""Admission of requests: a budget of bytes, a limit of running answers, and a queue by priority."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from openafm.serving.errors import ApiError, bad_request

_SMOOTHING = 0.2  # weight of the latest request in the mean duration


@dataclass(frozen=True, kw_only=True)
class SharedMemory:
    """Memory that requests share, such as an adapter: in use from the first request until it is dropped.

    Attributes:
        name: what a message to the client calls it.
        free: called when the memory is needed and no request uses it.
    """

    key: str
    name: str
    num_bytes: int
    free: Callable[[], object]


class Caches(Protocol):
    """Memory that grows with the answers and can be freed at any time."""

    @property
    def cached_bytes(self) -> int: ...

    def free_cached(self, num_bytes: int) -> None:
        """Free at least `num_bytes` if the caches hold as much."""
        ...


class _NoCaches:
    cached_bytes = 0

    def free_cached(self, num_bytes: int) -> None:
        """There is nothing to free."""


@dataclass(order=True)
class _Waiter:
    priority: int
    number: int
    num_bytes: int = field(compare=False)
    num_answers: int = field(compare=False)
    shared: Sequence[SharedMemory] = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)


@dataclass
class _Resident:
    """Shared memory and the number of admitted requests that use it."""

    memory: SharedMemory
    num_users: int = 0


class Admission:
    """Admit requests while memory and places are free; others wait in order of priority, then of arrival.

    Used by the thread of the event loop.

    Args:
        kv_bytes: budget for keys and values of the admitted requests, for shared memory and for caches.
        max_running: most answers at a time.
        max_waiting: most waiting requests.
        queue_seconds: longest wait.
        caches: freed as far as a request needs their memory.
    """

    def __init__(
        self,
        *,
        kv_bytes: int,
        max_running: int,
        max_waiting: int,
        queue_seconds: float,
        caches: Caches | None = None,
    ) -> None:
        self.kv_bytes, self.max_running, self._caches = kv_bytes, max_running, caches or _NoCaches()
        self._residents: dict[str, _Resident] = {}  # least recently used first
        self._max_waiting, self._queue_seconds = max_waiting, queue_seconds
        self.used_bytes = self.num_running = 0
        self._queue: list[_Waiter] = []
        self._numbers = itertools.count()
        self._mean_seconds = 1.0

    @property
    def num_waiting(self) -> int:
        return sum(not waiter.admitted.done() for waiter in self._queue)

    @contextlib.asynccontextmanager
    async def admitted(
        self, num_bytes: int, num_answers: int = 1, priority: int = 0, shared: Sequence[SharedMemory] = ()
    ) -> AsyncIterator[None]:
        """Run a block with `num_bytes` of memory, shared memory and `num_answers` places. Higher priorities go first.

        Raises:
            ApiError: 400 if the request can never be admitted; 429 if the queue is full or the wait is too long.
        """
        if num_bytes + sum(each.num_bytes for each in shared) > self.kv_bytes:
            and_shared = "".join(f" and {each.num_bytes:,} for {each.name}" for each in shared)
            raise bad_request(
                f"the request needs {num_bytes:,} bytes for keys and values{and_shared}, and the server has"
                f" {self.kv_bytes:,}; lower max_tokens or n, or shorten the messages",
                param="max_tokens",
            )
        if num_answers > self.max_running:
            raise bad_request(f"n is {num_answers}; this server computes at most {self.max_running} at a time", param="n")
        waiter = await self._wait(num_bytes, num_answers, priority, shared)
        started = time.monotonic()
        try:
            yield
        finally:
            self._leave(waiter)
            self._mean_seconds += _SMOOTHING * (time.monotonic() - started - self._mean_seconds)
            self._admit()

    def retain(self, keys: Collection[str]) -> None:
        """Stop counting shared memory that is free by now: no request uses it, and `keys` lacks it."""
        for key in [key for key, each in self._residents.items() if not each.num_users and key not in keys]:
            self.used_bytes -= self._residents.pop(key).memory.num_bytes
        self._admit()

    async def _wait(self, num_bytes: int, num_answers: int, priority: int, shared: Sequence[SharedMemory]) -> _Waiter:
        future = asyncio.get_running_loop().create_future()
        waiter = _Waiter(-priority, next(self._numbers), num_bytes, num_answers, shared, future)
        heapq.heappush(self._queue, waiter)
        self._admit()
        try:
            if not future.done() and self.num_waiting > self._max_waiting:
                raise self._overloaded("too many requests wait")
            async with asyncio.timeout(self._queue_seconds):
                await future
            return waiter
        except TimeoutError:
            if future.done() and not future.cancelled():  # admitted in the same turn of the event loop
                return waiter
            raise self._overloaded(f"no memory became free within {self._queue_seconds:g} s") from None
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # admitted in the same turn of the event loop
                self._leave(waiter)
            raise
        finally:
            future.cancel()
            self._admit()

    def _admit(self) -> None:
        """Admit waiters from the front of the queue while they fit. Later ones do not overtake the first."""
        while self._queue:
            first = self._queue[0]
            if not first.admitted.done():
                if self.num_running + first.num_answers > self.max_running or not self._find_room(first):
                    return
                self._enter(first)
                first.admitted.set_result(None)
            heapq.heappop(self._queue)

    def _find_room(self, waiter: _Waiter) -> bool:
        """Return whether a request fits, after freeing caches and then unused shared memory if it fits only then."""
        own = {each.key for each in waiter.shared}
        added = sum(each.num_bytes for each in waiter.shared if each.key not in self._residents)
        unused = [key for key, each in self._residents.items() if not each.num_users and key not in own]
        missing = self.used_bytes + waiter.num_bytes + added - self.kv_bytes  # beside caches
        if missing > sum(self._residents[key].memory.num_bytes for key in unused):
            return False
        cached = self._caches.cached_bytes
        if missing + cached > 0:
            self._caches.free_cached(min(missing, 0) + cached)
        for key in unused:
            if missing <= 0:
                break
            memory = self._residents.pop(key).memory
            memory.free()
            self.used_bytes -= memory.num_bytes
            missing -= memory.num_bytes
        return True

    def _enter(self, waiter: _Waiter) -> None:
        self.used_bytes += waiter.num_bytes
        self.num_running += waiter.num_answers
        for memory in waiter.shared:
            if memory.key not in self._residents:
                self.used_bytes += memory.num_bytes
            resident = self._residents.pop(memory.key, _Resident(memory))
            resident.num_users += 1
            self._residents[memory.key] = resident  # the most recently used

    def _leave(self, waiter: _Waiter) -> None:
        self.used_bytes -= waiter.num_bytes
        self.num_running -= waiter.num_answers
        for memory in waiter.shared:
            self._residents[memory.key].num_users -= 1

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
