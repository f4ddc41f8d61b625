"""A response as it is written: generated in a thread of its own, awaited snapshot by snapshot."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from openafm.framework.daemon import in_daemon_thread
from openafm.framework.errors import GenerationCancelledError
from openafm.framework.session.formats import FinalT, PartialT, Snapshot
from openafm.framework.session.request import Request, Response
from openafm.framework.session.request_queue import RequestQueue

ItemT = TypeVar("ItemT")


class ResponseStream(Generic[PartialT, FinalT]):
    """The snapshots of one response, each the whole value so far: `async for snapshot in stream`.

    Nothing happens before the first one is asked for. A stream that is closed, or dropped half-way, cancels its request: the
    session is then as before it.
    """

    def __init__(
        self,
        request: Request[PartialT, FinalT],
        queue: RequestQueue,
        items: Iterator[Any],
    ) -> None:
        self._request = request
        self._items = _in_thread(request, queue, items)  # holds no reference to this object, so that __del__ is called

    def __aiter__(self) -> ResponseStream[PartialT, FinalT]:
        return self

    async def __anext__(self) -> Snapshot[PartialT]:
        snapshot: Snapshot[PartialT] = await anext(self._items)
        return snapshot

    async def collect(self) -> Response[FinalT]:
        """Wait for the end; the response and all that belongs to it.

        Raises:
            GenerationError: as `LanguageModelSession.respond`.
        """
        try:
            async for _ in self._items:
                pass
        finally:
            await self.aclose()
        if self._request.response is None:
            raise GenerationCancelledError("the stream was closed before its end; there is no response")
        return self._request.response

    async def aclose(self) -> None:
        """Cancel what is still to come and wait until the session is free. Does nothing after the end."""
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
    request: Request[Any, Any],
    line: RequestQueue,
    items: Iterator[ItemT],
) -> AsyncGenerator[ItemT, None]:
    """Run `items` in a thread and yield what it yields. Closing this cancels the request and waits for the thread.

    Once started, `items` releases the session itself.
    """
    await line.enter(request)
    request.loop = loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[ItemT] | BaseException | None] = asyncio.Queue()

    def deliver(item: tuple[ItemT] | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        try:
            for item in items:
                deliver((item,))
        except BaseException as error:  # raised again where the response is awaited
            deliver(error)
        else:
            deliver(None)

    try:
        in_daemon_thread(work, "openafm-response")
    except BaseException:
        line.leave(request)
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
