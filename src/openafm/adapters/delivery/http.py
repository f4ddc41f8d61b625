"""HTTP requests with a deadline for the whole download, which a server that sends one byte at a time cannot extend."""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from openafm.adapters.delivery.errors import UnreachableError

_CHUNK_BYTES = 1 << 16


class Download:
    """Requests to one server. After `total_s` seconds all connections are shut down.

    `timeout_s` limits the time without a byte. Redirections to other schemes than HTTP and HTTPS are refused.
    """

    def __init__(self, total_s: float, timeout_s: float) -> None:
        self.total_s, self._timeout_s = total_s, timeout_s
        self.is_expired = False
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(total_s, self._expire)
        self._timer.daemon = True
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            _Handler(self),
            _SecureHandler(self),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):
            self._opener.add_handler(handler)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        for connection in self._connections:
            connection.close()

    def get(self, url: str, start: int = 0) -> http.client.HTTPResponse:
        """Return the response to a GET, from byte `start` on if the server supports ranges.

        Raises:
            UnreachableError: the server does not answer, or refuses.
        """
        request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
                return self.get(url)  # the server's file is shorter than the part: start again
            raise UnreachableError(f"{url} answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an invalid host, as in a redirection
            raise UnreachableError(f"{url} cannot be reached: {error}{self.reason}") from error
        return response

    @property
    def reason(self) -> str:
        """A clause for error messages if the deadline has passed."""
        return f" (the limit of {self.total_s:g} seconds has passed)" if self.is_expired else ""

    def connect(self, *arguments: Any, **options: Any) -> socket.socket:
        """Open a socket that the deadline shuts down, also during the TLS handshake."""
        connection = socket.create_connection(*arguments, **options)
        with self._lock:
            self._connections.append(connection.dup())
            if self.is_expired:
                connection.shutdown(socket.SHUT_RDWR)
        return connection

    def _expire(self) -> None:
        with self._lock:
            self.is_expired = True
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body as it arrives, until its end or until the connection breaks. The caller counts the bytes."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while chunk := response.read1(_CHUNK_BYTES):
            yield chunk


class _Handler(urllib.request.HTTPHandler):
    def __init__(self, download: Download) -> None:
        super().__init__()
        self._connection = functools.partial(_Connection, download=download)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def __init__(self, download: Download) -> None:
        super().__init__()
        self._connection = functools.partial(_SecureConnection, download=download)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req, context=ssl.create_default_context())


class _Connection(http.client.HTTPConnection):
    def __init__(self, *arguments: Any, download: Download, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._create_connection = download.connect


class _SecureConnection(http.client.HTTPSConnection):
    def __init__(self, *arguments: Any, download: Download, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._create_connection = download.connect
