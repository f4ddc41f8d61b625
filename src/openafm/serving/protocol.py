"""HTTP connections with limits on the time in which clients send headers and read replies."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LEAST_READ_BYTES = 1 << 16
"""What a client must read within `header_seconds` while a reply waits for it."""


class LimitedProtocol(HttpToolsProtocol):
    """Close connections whose headers do not arrive in time, or whose client does not read the reply.

    uvicorn limits idle connections after a reply only. A reply that waits for its client holds a place of the server.
    """

    header_seconds: ClassVar[float] = 15.0
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.header_seconds, transport.close)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:  # a later request of this connection
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

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
