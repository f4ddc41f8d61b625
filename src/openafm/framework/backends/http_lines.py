"""Stream the lines of an HTTP response to blocking code, with limits on time and memory.

The request runs in its own thread and event loop, where it can be cancelled while it connects, waits or reads. The reading
thread stops when `_MAX_BUFFERED_BYTES` are waiting, so a fast endpoint cannot fill the memory. The connection is closed
before the generator ends.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from openafm.framework.daemon import in_daemon_loop
from openafm.framework.errors import (
    AssetsUnavailableError,
    GenerationCancelledError,
    GenerationError,
)

_POLL_S = 0.02
_MAX_LINE_BYTES = 4 * 2**20
_MAX_ERROR_BYTES = 64 * 2**10
_MAX_BUFFERED_BYTES = 8 * 2**20
_LINE_OVERHEAD_BYTES = 64  # so that many empty lines count too


class EndpointError(GenerationError):
    """An endpoint closed the connection early, or sent an invalid reply."""


class EndpointTimeoutError(EndpointError):
    """An endpoint sent nothing for too long, or no complete reply in time."""


class EndpointReplyTooLongError(EndpointError):
    """A reply exceeds a limit, as of a model that does not stop. Other requests may work."""


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """Hold an HTTP request and its limits.

    Attributes:
        body: the JSON body of a POST request; None sends a GET request.
        headers: not part of the repr, since they hold the API key.
        timeout_seconds: longest wait for the connection and between two reads.
        total_seconds: longest duration of the whole request.
        max_bytes: largest response body.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    timeout_seconds: float
    total_seconds: float
    max_bytes: int = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class ErrorStatus:
    """Hold an HTTP response whose status is not 200."""

    status: int
    headers: Mapping[str, str]
    text: str


_Item: TypeAlias = bytes | ErrorStatus | BaseException | None  # the last item is None or an error


def streamed_lines(request: HttpRequest, cancelled: Callable[[], bool]) -> Generator[str | ErrorStatus, None, None]:
    """Yield the lines of the response without line ends, or one `ErrorStatus`. Closing the generator ends the request.

    Raises:
        AssetsUnavailableError: the connection was refused, or no HTTP client is installed.
        EndpointTimeoutError: nothing arrived for `timeout_seconds`, or the response took longer than `total_seconds`.
        EndpointError: the connection broke, or the response exceeds a size limit.
        GenerationCancelledError: `cancelled` returned True.
    """
    lines = _LineBuffer()
    closed = threading.Event()
    deadline = time.monotonic() + request.total_seconds

    def check() -> None:
        if cancelled():
            raise GenerationCancelledError("the request was cancelled; the session is unchanged")
        if time.monotonic() > deadline:
            raise EndpointTimeoutError(f"{request.url} sent no complete reply within {request.total_seconds:g} s")

    delivered = in_daemon_loop(_deliver(request, lines, check, closed), "openafm-http")
    delivered.add_done_callback(lambda ended: lines.finish(ended.exception()))
    item: _Item = b""
    try:
        while (item := lines.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            check()  # before every line: a flood of lines must not outlast a deadline
            yield item.decode("utf-8", errors="replace") if isinstance(item, bytes) else item
    finally:
        closed.set()
        while item is not None and not isinstance(item, BaseException):  # until the connection is closed
            item = lines.get()


class _LineBuffer:
    """A queue between threads. `put` waits while `_MAX_BUFFERED_BYTES` are in the queue."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._num_bytes = 0
        self._lock = threading.Lock()

    async def put(self, item: bytes | ErrorStatus) -> None:
        while self._num_bytes > _MAX_BUFFERED_BYTES:
            await asyncio.sleep(_POLL_S / 4)
        with self._lock:
            self._num_bytes += _size(item)
        self._items.put(item)

    def finish(self, error: BaseException | None) -> None:
        self._items.put(error)

    def get(self) -> _Item:
        item = self._items.get()
        with self._lock:
            self._num_bytes -= _size(item)
        return item


def _size(item: _Item) -> int:
    return len(item) + _LINE_OVERHEAD_BYTES if isinstance(item, bytes) else 0


async def _deliver(request: HttpRequest, lines: _LineBuffer, check: Callable[[], None], closed: threading.Event) -> None:
    """Put the response into `lines`. Stop if `closed` is set or `check` raises."""

    async def work() -> None:
        async for item in _received(request):
            await lines.put(item)

    task = asyncio.ensure_future(work())
    error: GenerationError | None = None
    while not task.done():
        await asyncio.wait({task}, timeout=_POLL_S)
        try:
            check()
        except GenerationError as raised:
            error = raised
        if error is not None or closed.is_set():
            task.cancel()
    if not task.cancelled():
        task.result()
    elif error is not None:
        raise error


async def _received(request: HttpRequest) -> AsyncIterator[bytes | ErrorStatus]:
    try:
        import httpx2
    except ImportError as error:
        raise AssetsUnavailableError("no HTTP client is installed; install openafm with the extra 'http'") from error

    method, body = ("GET", None) if request.body is None else ("POST", dict(request.body))
    headers = dict(request.headers) | {"Accept-Encoding": "identity"}  # a small compressed body can expand to gigabytes
    try:
        async with (
            httpx2.AsyncClient(timeout=request.timeout_seconds, verify=_certificates()) as client,
            client.stream(method, request.url, json=body, headers=headers) as response,
        ):
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise EndpointError(f"{request.url} sent a compressed reply, although none was requested")
            if response.status_code == 200:
                async for line in _lines(response.aiter_raw(), request.max_bytes):
                    yield line
            else:
                start = b""
                async for chunk in response.aiter_raw():
                    start += chunk[:_MAX_ERROR_BYTES]
                    if len(start) >= _MAX_ERROR_BYTES:
                        break
                text = start[:_MAX_ERROR_BYTES].decode("utf-8", errors="replace")
                yield ErrorStatus(status=response.status_code, headers=dict(response.headers), text=text)
    except httpx2.TimeoutException as error:
        raise EndpointTimeoutError(f"{request.url} sent nothing for {request.timeout_seconds:g} s") from error
    except (httpx2.ConnectError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise AssetsUnavailableError(f"{request.url} cannot be reached: {error}") from error
    except httpx2.HTTPError as error:
        raise EndpointError(f"{request.url} closed the connection before the end of its reply: {error!r}") from error


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return the system's trusted certificates. Cached: reading them takes milliseconds."""
    import httpx2

    return httpx2.create_ssl_context()


async def _lines(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """Split at line feeds only: JSON inside server-sent events may contain other Unicode line separators."""
    parts: list[bytes] = []  # of the unfinished line; joined once, so that small chunks cost linear time
    num_bytes = num_line_bytes = 0
    async for chunk in chunks:
        await asyncio.sleep(0)  # reads of buffered data do not suspend; let the deadline be checked
        num_bytes += len(chunk)
        first, *others = chunk.split(b"\n")
        parts.append(first)
        num_line_bytes += len(first)
        for other in others:
            yield b"".join(parts).removesuffix(b"\r")
            parts, num_line_bytes = [other], len(other)
        if num_line_bytes > _MAX_LINE_BYTES:
            raise EndpointError(f"the reply has a line of more than {_MAX_LINE_BYTES:,} bytes")
        if num_bytes > max_bytes:
            raise EndpointError(f"the reply has more than {max_bytes:,} bytes")
    if num_line_bytes:
        yield b"".join(parts)
