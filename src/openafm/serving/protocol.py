"""HTTP connections with a limit on the time of a request's headers."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class LimitedProtocol(HttpToolsProtocol):
    """Close connections whose headers do not arrive in time. uvicorn limits idle connections after a reply only."""

    header_seconds: ClassVar[float] = 15.0
    _deadline: asyncio.TimerHandle | None = None

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

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
