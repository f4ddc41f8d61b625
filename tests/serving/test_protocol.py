"""Limits of a connection on the bytes of a request that the parser has not finished."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from openafm.serving.protocol import MOST_HEADER_BYTES, LimitedProtocol

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class RecordedTransport(asyncio.Transport):
    """Stores what a protocol writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def replies(*chunks: bytes) -> list[int]:
    """Return the status of each reply to a connection that receives some chunks."""

    async def converse() -> bytes:
        config = uvicorn.Config(application, ws="none", lifespan="off")
        config.load()
        protocol, transport = LimitedProtocol(config, ServerState(), {}), RecordedTransport()
        protocol.connection_made(transport)
        for chunk in chunks:
            if not transport.is_closed:
                protocol.data_received(chunk)
            for _ in range(5):
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        return transport.written

    return [int(reply.split(b" ", 1)[0]) for reply in asyncio.run(converse()).split(b"HTTP/1.1 ")[1:]]


def test_a_request_may_begin_in_the_data_that_ends_a_large_body() -> None:
    body = b"x" * (2 * MOST_HEADER_BYTES)
    first = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    assert replies(first, body + b"GET / HTTP/1.1\r\nHo", b"st: a\r\n\r\n") == [200, 200]


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nX: ", POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: "])
def test_headers_and_trailers_without_end_are_refused(start: bytes) -> None:
    part = b"x" * (MOST_HEADER_BYTES // 8)
    assert replies(start, *[part] * 7) == []
    assert replies(start, *[part] * 9) == [400]


def test_a_body_in_small_parts_has_no_limit() -> None:
    parts = [b"2000\r\n" + b"x" * 0x2000 + b"\r\n"] * 10
    assert replies(POST + b"Transfer-Encoding: chunked\r\n\r\n", *parts, b"0\r\nX: y\r\n\r\n") == [200]
