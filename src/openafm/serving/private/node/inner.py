"""Requests inside encrypted messages: calls of the server's routes in this process, and their padded replies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Scope

from openafm.serving.errors import ApiError
from openafm.serving.keys import ANONYMOUS
from openafm.serving.private.oblivious_http.binary_http import (
    CONTENT_END,
    BinaryRequest,
    BinaryResponse,
    Fields,
    encode_content,
    encode_head,
    encode_response,
)
from openafm.serving.private.oblivious_http.padding import CHUNK_CLASSES, LARGEST_CHUNK, event_pieces, padded_length

ROUTES = frozenset(
    (("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/messages"), ("GET", "/v1/models"))
)
"""Routes inside encrypted messages. None of them stores anything."""

TICK_SECONDS = 0.05
"""A stream sends one chunk each tick, with events or without, so that its times do not show those of tokens."""

_KEPT_FIELDS = (b"content-type", b"retry-after")
_WAITING_PIECES = 16


@dataclass(frozen=True)
class Chunk:
    """A part of a reply, before encryption."""

    data: bytes
    is_last: bool = False


@dataclass(frozen=True, kw_only=True)
class InnerReply:
    """The start of a reply, and its content as it is produced."""

    status: int
    fields: Fields
    content: AsyncIterator[bytes]

    @property
    def is_stream(self) -> bool:
        return any(value.startswith("text/event-stream") for _, value in self.fields)

    async def whole(self) -> bytes:
        """Return the binary HTTP message of the reply, padded to its class."""
        content = b"".join([piece async for piece in self.content])
        return encode_padded(BinaryResponse(status=self.status, fields=self.fields, content=content))

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Yield the binary HTTP message in chunks of padded lengths."""
        if not self.is_stream:
            for chunk in whole_chunks(await self.whole()):
                yield chunk
            return
        head = encode_head(self.status, self.fields)
        room = CHUNK_CLASSES[0] - len(head) - 2
        yield Chunk(head + encode_content(b":" + b" " * (room - 2) + b"\n"))
        async for events in _ticks(self.content):
            for piece in event_pieces(events):
                yield Chunk(encode_content(piece))
        yield Chunk(CONTENT_END.ljust(CHUNK_CLASSES[0], b"\0"), is_last=True)


def whole_chunks(message: bytes) -> list[Chunk]:
    """Return the chunks of a whole message."""
    starts = range(0, len(message), LARGEST_CHUNK)
    return [Chunk(message[start : start + LARGEST_CHUNK], is_last=start == starts[-1]) for start in starts]


def encode_padded(response: BinaryResponse) -> bytes:
    """Return a whole response, padded to its class."""
    return encode_response(response, padded_length(len(encode_response(response))))


def error_response(error: ApiError, path: str) -> bytes:
    """Return the encrypted part of an error reply, before encryption."""
    content = json.dumps(error.body(path)).encode()
    return encode_padded(
        BinaryResponse(status=error.status, fields=(("content-type", "application/json"),), content=content)
    )


@contextlib.asynccontextmanager
async def called(app: ASGIApp, request: BinaryRequest) -> AsyncIterator[InnerReply]:
    """Run a block with the reply of an application to a request. Leaving it early cancels the application.

    Raises:
        ApiError: the request is not for one of `ROUTES`.
    """
    path, _, query = request.path.partition("?")
    if (request.method, path) not in ROUTES:
        allowed = ", ".join(f"{method} {path}" for method, path in sorted(ROUTES))
        raise ApiError(404, f"a private node has no such route; it has {allowed}", code="not_found")
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_PIECES)
    started: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    bodies = [request.content]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await asyncio.Event().wait()  # the block's end cancels the application
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.set_result(message)
        elif message.get("body"):
            await pieces.put(message["body"])

    async def run() -> None:
        try:
            await app(_scope(request, path, query), receive, send)
        except Exception:
            await pieces.put(None)
            raise
        await pieces.put(None)

    task = asyncio.ensure_future(run())
    try:
        await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await task
            raise ApiError(500, "internal error of the server", code="internal_error")
        head = started.result()
        fields = tuple((name.decode(), value.decode("latin-1")) for name, value in head["headers"] if name in _KEPT_FIELDS)
        yield InnerReply(status=head["status"], fields=fields, content=_content(pieces, task))
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # mark as retrieved


def _scope(request: BinaryRequest, path: str, query: str) -> Scope:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.fields]
    headers = [pair for pair in headers if pair[0] not in (b"content-type", b"content-length")]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [*headers, (b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "state": {"client": ANONYMOUS},
    }


async def _content(pieces: asyncio.Queue[bytes | None], task: asyncio.Future[None]) -> AsyncIterator[bytes]:
    while (piece := await pieces.get()) is not None:
        yield piece
    await task


async def _ticks(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events of each tick together, also of a tick without events."""
    waiting: asyncio.Future[bytes] | None = None
    ended = False
    try:
        while not ended:
            events, until = b"", asyncio.get_running_loop().time() + TICK_SECONDS
            while not ended and (left := until - asyncio.get_running_loop().time()) > 0:
                waiting = waiting or asyncio.ensure_future(anext(content))
                await asyncio.wait((waiting,), timeout=left)
                if waiting.done():
                    try:
                        events += waiting.result()
                    except StopAsyncIteration:
                        ended = True
                    waiting = None
            yield events
    finally:
        if waiting is not None:
            waiting.cancel()
