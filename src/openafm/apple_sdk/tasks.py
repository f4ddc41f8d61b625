"""Requests of the SDK: tasks in a thread of openafm, which calls the callbacks, as a native library does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeAlias

from openafm.apple_sdk.c_values import CText, status_of
from openafm.apple_sdk.handles import HANDLES
from openafm.framework.daemon import in_daemon_thread
from openafm.framework.errors import GenerationErrorCode, InvalidGenerationSchemaError
from openafm.framework.schema.content import GeneratedContent
from openafm.framework.session.response_stream import ResponseStream

SUCCESS = GenerationErrorCode.SUCCESS

TextCallback: TypeAlias = Callable[[int, CText | None, int, Any], object]  # status, text, length in bytes, user info
ContentCallback: TypeAlias = Callable[[int, int | None, Any], object]  # status, handle of the content, user info
CountCallback: TypeAlias = Callable[[int, int, CText | None, Any], object]  # status, count, description, user info

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_running: set[Future[None]] = set()  # event loops hold weak references to tasks


class Task:
    """A running request. After `cancel` its callback is not called: the caller may have freed the user info."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._future = asyncio.run_coroutine_threadsafe(work, _request_loop())
        _running.add(self._future)
        self._future.add_done_callback(_running.discard)

    def cancel(self) -> None:
        self._future.cancel()


class Stream:
    """A streamed response that `iterate` starts. Deleting the object cancels the request."""

    def __init__(self, open_stream: Callable[[], ResponseStream[Any, Any]]) -> None:
        self._open_stream = open_stream
        self._task: Task | None = None

    def iterate(self, user_info: Any, callback: TextCallback) -> None:
        """Start the request. The callback receives each snapshot, then None."""
        self._task = Task(_deliver_snapshots(self._open_stream, user_info, callback))

    def __del__(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def deliver_text(respond: Callable[[], Coroutine[Any, Any, Any]], user_info: Any, callback: TextCallback) -> None:
    """Call the callback with the text of a response, or of an error."""
    try:
        text = CText.of(await respond())
    except Exception as error:
        status, text = status_of(error), CText.of(str(error))
    else:
        status = SUCCESS
    callback(status, text, len(text), user_info)


async def deliver_content(
    respond: Callable[[], Coroutine[Any, Any, Any]], user_info: Any, callback: ContentCallback
) -> None:
    """Call the callback with a guided response, or with content that describes an error."""
    try:
        status, content = SUCCESS, await respond()
    except InvalidGenerationSchemaError as error:
        # Apple's framework has this status code for schema creation only, not for requests.
        status, content = GenerationErrorCode.UNKNOWN_ERROR, GeneratedContent(str(error))
    except Exception as error:
        status, content = status_of(error), GeneratedContent(str(error))
    callback(status, HANDLES.hand_over(content), user_info)


async def deliver_count(count: Callable[[], Coroutine[Any, Any, int]], user_info: Any, callback: CountCallback) -> None:
    """Call the callback with a number of tokens."""
    try:
        found = await count()
    except Exception as error:
        callback(status_of(error), 0, CText.of(str(error)), user_info)
    else:
        callback(SUCCESS, found, None, user_info)


async def _deliver_snapshots(
    open_stream: Callable[[], ResponseStream[Any, Any]], user_info: Any, callback: TextCallback
) -> None:
    try:
        async with open_stream() as stream:
            async for snapshot in stream:
                text = CText.of(snapshot.content)
                callback(SUCCESS, text, len(text), user_info)
    except Exception as error:
        text = CText.of(str(error))
        callback(status_of(error), text, len(text), user_info)
    else:
        callback(SUCCESS, None, 0, user_info)


def _request_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            in_daemon_thread(loop.run_forever, "openafm-apple-sdk")
            _loop = loop
        return _loop
