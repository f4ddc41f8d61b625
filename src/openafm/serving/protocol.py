"""HTTP connections with limits on the size of headers and on the time in which clients send them and read replies."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LEAST_READ_BYTES = 1 << 16
"""What a client must read within `header_seconds` while a reply waits for it."""

MOST_HEADER_BYTES = 1 << 16
"""Of the names and values of a request's headers. The parser itself has no limit."""


class HeadersTooLargeError(ValueError):
    """The headers of a request exceed `MOST_HEADER_BYTES`. The parser turns it into an error of its own: status 400."""


class LimitedProtocol(HttpToolsProtocol):
    """Close connections whose headers are too large or do not arrive in time, or whose client does not read the reply.

    uvicorn limits idle connections after a reply only. A reply that waits for its client holds a place of the server.
    """

    header_seconds: ClassVar[float] = 15.0
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _num_header_bytes = 0
    _is_unfinished = True  # headers, body or trailers of a request are to come
    _has_progress = False  # in the present call of `data_received`
    _num_unfinished = 0  # bytes of the calls since the last progress

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.header_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        self._has_progress = False
        super().data_received(data)
        if self._has_progress:  # the data may have the end of one request and the start of the next
            self._num_unfinished = 0
        elif self._is_unfinished and not self.transport.is_closing():
            self._num_unfinished += len(data)
            if self._num_unfinished > MOST_HEADER_BYTES:  # a header or trailer of which the parser has not found the end
                self.send_400_response(f"The headers are larger than {MOST_HEADER_BYTES:,} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_header_bytes = 0
        self._is_unfinished = True
        if self._deadline is None:  # a later request of this connection
            self._has_progress = True
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_header_bytes += len(name) + len(value)
        if self._num_header_bytes > MOST_HEADER_BYTES:
            raise HeadersTooLargeError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop()
        self._has_progress = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_unfinished = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._stop_reading()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _await_reading(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.header_seconds, self._check_reading, left)

    def _check_reading(self, before: int) -> None:
        if self.transport.get_write_buffer_size() > before - LEAST_READ_BYTES:
            self.transport.abort()
        else:
            self._await_reading()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
