"""HTTP requests with a deadline for the whole download, which a server that sends one byte at a time cannot extend."""

from __future__ import annotations

import contextlib
import functools
import http.client
import ipaddress
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, Self

from openafm.adapters.delivery.errors import UnreachableError

_CHUNK_BYTES = 1 << 16


class Download:
    """Requests to one server. After `total_s` seconds all connections are shut down.

    `timeout_s` limits the time without a byte. Redirections stay on the server or lead to HTTPS. A download from a public
    address never connects to a private one.
    """

    def __init__(self, total_s: float, timeout_s: float) -> None:
        self.total_s, self._timeout_s = total_s, timeout_s
        self.is_expired = False
        self._is_public = False  # whether a connection to a public address was made
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(total_s, self._expire)
        self._timer.daemon = True
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            _Handler(self),
            _SecureHandler(self),
            _RedirectHandler(),
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

    def connect(self, address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
        """Open a socket that the deadline shuts down, also during the TLS handshake.

        Raises:
            UnreachableError: the address is private, and an earlier one was public.
        """
        connection = self._connected(address, *arguments, **options)
        with self._lock:
            self._connections.append(connection.dup())
            if self.is_expired:
                connection.shutdown(socket.SHUT_RDWR)
        return connection

    def _connected(self, address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
        """Connect to a numeric address, so that the name cannot change between the check and the connection."""
        host, port = address
        found = dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        allowed = [each for each in found if _is_public(each) or not self._is_public]
        if not allowed:
            raise UnreachableError(f"the server redirects to {host}, a private address; ask its operator")
        for place, numeric in enumerate(allowed, 1):
            try:
                connection = socket.create_connection((numeric, port), *arguments, **options)
            except OSError:
                if place == len(allowed):
                    raise
            else:
                self._is_public = self._is_public or _is_public(numeric)
                return connection
        raise AssertionError("there is an address")

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


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return parsed.is_global and not parsed.is_multicast


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        before, after = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if after.scheme != "https" and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            fp.close()
            raise UnreachableError(
                f"{req.full_url} redirects to {newurl!r:.200}; redirections stay on the server or lead to https"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


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
