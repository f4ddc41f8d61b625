"""The lines of an HTTP response as they come, for code that blocks but must be able to stop at any moment.

The request runs in an event loop and thread of its own, where it can be cancelled while it connects, while it waits for the
first byte and between two bytes. Its connection is closed before the last line is told.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import ssl
import threading
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
_LONGEST_LINE = 16 * 2**20  # bytes
_LONGEST_ERROR = 64 * 2**10


class EndpointError(GenerationError):
    """An endpoint that broke off, or sent what is not an answer."""


class EndpointTimeoutError(EndpointError):
    """An endpoint that said nothing for too long."""


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A JSON body to send to `url`; `timeout_seconds` is the longest silence. Headers are not shown: they hold the key."""

    url: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(repr=False)
    timeout_seconds: float


@dataclass(frozen=True, kw_only=True)
class ErrorStatus:
    """An HTTP response that says what went wrong."""

    status: int
    headers: Mapping[str, str]
    text: str


_Item: TypeAlias = bytes | ErrorStatus | BaseException | None  # at the end None or what went wrong


def streamed_lines(request: HttpRequest, cancelled: Callable[[], bool]) -> Generator[str | ErrorStatus, None, None]:
    """The lines of the response without their ends; or one `ErrorStatus`. Closing this ends the request.

    Raises:
        AssetsUnavailableError: nobody listens there, or no HTTP client is installed.
        EndpointTimeoutError: nothing came for `timeout_seconds`.
        EndpointError: the connection broke, or a line has no end.
        GenerationCancelledError: `cancelled` said so.
    """
    items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    closed = threading.Event()

    def is_over() -> bool:
        return closed.is_set() or cancelled()

    delivered = in_daemon_loop(_deliver(request, items, is_over), "openafm-http")
    delivered.add_done_callback(lambda ended: items.put(ended.exception()))
    try:
        while (item := items.get()) is not None:
            match item:
                case BaseException():
                    raise item
                case bytes():
                    yield item.decode("utf-8", errors="replace")
                case _:
                    yield item
    finally:
        closed.set()
        while item is not None and not isinstance(item, BaseException):  # until the connection is closed
            item = items.get()


async def _deliver(request: HttpRequest, items: queue.SimpleQueue[_Item], is_over: Callable[[], bool]) -> None:
    """Put what comes into `items`."""

    async def work() -> None:
        async for item in _received(request):
            items.put(item)

    task = asyncio.ensure_future(work())
    while not task.done():
        await asyncio.wait({task}, timeout=_POLL_S)
        if is_over():
            task.cancel()
    if task.cancelled():
        raise GenerationCancelledError("the request was cancelled; the session is as it was before")
    task.result()


async def _received(request: HttpRequest) -> AsyncIterator[bytes | ErrorStatus]:
    try:
        import httpx2
    except ImportError as error:
        raise AssetsUnavailableError("models behind HTTP need a client; install openafm with its extra 'http'") from error

    try:
        async with (
            httpx2.AsyncClient(timeout=request.timeout_seconds, verify=_certificates()) as client,
            client.stream("POST", request.url, json=dict(request.body), headers=dict(request.headers)) as response,
        ):
            if response.status_code == 200:
                async for line in _lines(response.aiter_bytes()):
                    yield line
            else:
                start = b""
                async for chunk in response.aiter_bytes():
                    start += chunk
                    if len(start) > _LONGEST_ERROR:
                        break
                text = start[:_LONGEST_ERROR].decode("utf-8", errors="replace")
                yield ErrorStatus(status=response.status_code, headers=dict(response.headers), text=text)
    except httpx2.TimeoutException as error:
        raise EndpointTimeoutError(f"{request.url} said nothing for {request.timeout_seconds:g} s") from error
    except (httpx2.ConnectError, httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise AssetsUnavailableError(f"{request.url} cannot be reached: {error}") from error
    except httpx2.HTTPError as error:
        raise EndpointError(f"{request.url} broke off before the end of its answer: {error!r}") from error


@functools.cache
def _certificates() -> ssl.SSLContext:
    """What the system trusts; takes milliseconds to read, so it is read once."""
    import httpx2

    return httpx2.create_ssl_context()


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines as server-sent events have them; other separators that Unicode knows may stand inside of JSON."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
        if len(rest) > _LONGEST_LINE:
            raise EndpointError(f"a line of more than {_LONGEST_LINE:,} bytes")
    if rest:
        yield rest
