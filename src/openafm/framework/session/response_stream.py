"""Streamed responses: generated in a thread, awaited snapshot by snapshot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from openafm.framework.daemon import in_daemon_thread
from openafm.framework.errors import GenerationCancelledError
from openafm.framework.session.formats import FinalT, PartialT, Snapshot
from openafm.framework.session.request import Response, SessionRequest
from openafm.framework.session.request_queue import RequestQueue

ItemT = TypeVar("ItemT")


class ResponseStream(Generic[PartialT, FinalT]):
    """Iterate over the snapshots of one response: `async for snapshot in stream`. Each holds the whole value so far.

    The request starts with the first snapshot that is awaited. Closing or dropping the stream before its end cancels the
    request and leaves the session unchanged.
    """

    def __init__(
        self,
        request: SessionRequest[PartialT, FinalT],
        queue: RequestQueue,
        items: Iterator[Any],
    ) -> None:
        self._request = request
        self._items = _in_thread(request, queue, items)  # must not reference this object, or __del__ would not run

    def __aiter__(self) -> ResponseStream[PartialT, FinalT]:
        return self

    async def __anext__(self) -> Snapshot[PartialT]:
        snapshot: Snapshot[PartialT] = await anext(self._items)
        return snapshot

    async def collect(self) -> Response[FinalT]:
        """Return the finished response.

        Raises:
            GenerationError: same as `LanguageModelSession.respond`.
        """
        try:
            async for _ in self._items:
                pass
        finally:
            await self.aclose()
        if self._request.response is None:
            raise GenerationCancelledError("the stream was closed before its end, so there is no response")
        return self._request.response

    async def aclose(self) -> None:
        """Cancel the request and wait until the session is free. Does nothing after the end."""
        await self._items.aclose()

    async def __aenter__(self) -> ResponseStream[PartialT, FinalT]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._request.cancelled.set()


async def _in_thread(
    request: SessionRequest[Any, Any],
    requests: RequestQueue,
    items: Iterator[ItemT],
) -> AsyncGenerator[ItemT, None]:
    """Run `items` in a thread and yield its items. Closing the generator cancels the request and waits for the thread.

    `items` releases the session; this function does so only if the thread cannot start.
    """
    await requests.acquire(request)
    request.loop = loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[ItemT] | BaseException | None] = asyncio.Queue()

    def deliver(item: tuple[ItemT] | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        try:
            for item in items:
                deliver((item,))
        except BaseException as error:  # raised again in the awaiting task
            deliver(error)
        else:
            deliver(None)

    try:
        in_daemon_thread(work, "openafm-response")
    except BaseException:
        requests.release(request)
        raise
    ended = False
    try:
        while not ended:
            item = await queue.get()
            ended = not isinstance(item, tuple)
            match item:
                case (value,):
                    yield value
                case BaseException():
                    raise item
    finally:
        request.cancelled.set()
        while not ended:
            ended = not isinstance(await queue.get(), tuple)
