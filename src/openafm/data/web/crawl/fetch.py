"""Fetch one URL within limits of size, time and content type, from public addresses only.

The address is checked where the connection is made, after the DNS answer that the connection uses. So neither a redirect nor
a name that changes its address (DNS rebinding) can reach a private address. Redirects are returned, not followed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from openafm.core.errors import OpenAFMError
from openafm.core.libraries import needed
from openafm.data.web.permissions.opt_out import join_headers
from openafm.data.web.urls import is_public_address

if TYPE_CHECKING:
    import httpcore2

HTML_TYPES = ("text/html", "application/xhtml+xml")
IMAGE_TYPES = ("image/jpeg", "image/jpg", "image/png", "image/webp", "image/gif", "image/avif", "image/bmp", "image/tiff")
"""Content types of images that a crawl keeps. SVG is a program as much as an image and is left out."""
FAILURES = ("dns", "connect", "timeout", "tls", "protocol", "private_address", "port", "content_type", "too_large")
"""Reasons of a `FetchFailure`. Retries help against the first four only."""
RETRIED = frozenset({"dns", "connect", "timeout", "protocol"})
MAX_RETRY_AFTER_S = 24 * 3600.0
_WEB_PORTS = frozenset({80, 443})


class PrivateAddressError(OpenAFMError):
    """A host name resolves to an address that is not public."""


class UnresolvedHostError(OpenAFMError):
    """A host name has no address."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """An answer. `headers_at` is the time at which its headers had come; the server had the request before."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    request_headers: Mapping[str, str]
    headers_at: float
    http_version: str = "1.1"
    ip: str = ""
    is_truncated: bool = False


@dataclass(frozen=True)
class FetchFailure:
    """Why there is no answer; see `FAILURES`. `at` is the time of the failure."""

    reason: str
    detail: str
    at: float


@dataclass(frozen=True, kw_only=True)
class FetchLimits:
    """Limits of one request."""

    max_bytes: int = 10 << 20
    timeout_s: float = 30.0
    content_types: tuple[str, ...] = HTML_TYPES  # empty: any
    truncate: bool = False
    """True: a body above `max_bytes` is cut. False: it is a failure."""


@dataclass
class Fetcher:
    """An HTTP client for crawling. Use as an asynchronous context manager."""

    user_agent: str
    allow_private_addresses: bool = False
    max_connections: int = 64
    _client: Any = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        with needed("crawling", "httpx2", "data"):
            import httpx2
        limits = httpx2.Limits(max_connections=self.max_connections, max_keepalive_connections=self.max_connections)
        http2 = importlib.util.find_spec("h2") is not None
        transport = httpx2.AsyncHTTPTransport(trust_env=False, http2=http2, limits=limits)
        # httpx2 has no argument for the network backend; the pool has.
        transport._pool._network_backend = _checked_backend(self.allow_private_addresses)
        self._client = httpx2.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # a crawler has no session
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def fetch(
        self,
        url: str,
        limits: FetchLimits,
        *,
        etag: str = "",
        last_modified: str = "",
        accept_language: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Fetched | FetchFailure:
        """Fetch a URL; `etag` and `last_modified` of an earlier answer make the request conditional.

        `headers` replace the default ones; User-Agent and Accept-Encoding stay.
        """
        import httpx2

        headers = {"accept": "text/html,application/xhtml+xml,*/*;q=0.5"} | dict(headers or {})
        headers["user-agent"] = self.user_agent
        headers["accept-encoding"] = "gzip, deflate"  # both are decoded in bounded pieces
        headers |= {"accept-language": accept_language} if accept_language else {}
        headers |= {"if-none-match": etag} if etag else {}
        headers |= {"if-modified-since": last_modified} if last_modified else {}
        try:
            async with asyncio.timeout(limits.timeout_s):
                return await self._fetch(httpx2.URL(url), headers, limits)
        except (TimeoutError, httpx2.TimeoutException):
            return FetchFailure("timeout", f"no complete answer in {limits.timeout_s:g} s", time.time())
        except PrivateAddressError as error:
            return FetchFailure("private_address", str(error), time.time())
        except UnresolvedHostError as error:
            return FetchFailure("dns", str(error), time.time())
        except httpx2.ConnectError as error:
            reason = "tls" if "SSL" in str(error) or "certificate" in str(error).lower() else "connect"
            return FetchFailure(reason, str(error) or "the connection was refused", time.time())
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError, ValueError) as error:
            return FetchFailure("protocol", f"{type(error).__name__}: {error}", time.time())

    async def _fetch(self, url: Any, headers: dict[str, str], limits: FetchLimits) -> Fetched | FetchFailure:
        port = url.port or (443 if url.scheme == "https" else 80)
        if port < 1024 and port not in _WEB_PORTS and not self.allow_private_addresses:
            return FetchFailure("port", f"port {port} is not one of the web", time.time())
        async with self._client.stream("GET", url, headers=headers) as response:
            headers_at = time.time()
            found = join_headers(response.headers.multi_items())
            kind = found.get("content-type", "").partition(";")[0].strip().lower()
            is_page = 200 <= response.status_code < 300
            if is_page and limits.content_types and kind not in limits.content_types:
                return FetchFailure("content_type", kind or "no Content-Type", headers_at)
            declared = found.get("content-length", "")
            if declared.isdigit() and int(declared) > limits.max_bytes and not limits.truncate:
                return FetchFailure("too_large", f"{int(declared):,} bytes, more than {limits.max_bytes:,}", headers_at)
            body = bytearray()
            is_truncated = False
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > limits.max_bytes:
                    is_truncated = True
                    break
            if is_truncated and not limits.truncate:
                return FetchFailure("too_large", f"more than {limits.max_bytes:,} bytes after decoding", headers_at)
            stream = response.extensions.get("network_stream")
            server = stream.get_extra_info("server_addr") if stream is not None else None
            return Fetched(
                url=str(url),
                status=response.status_code,
                headers=found,
                body=bytes(body[: limits.max_bytes]),
                request_headers=headers,
                headers_at=headers_at,
                http_version=response.http_version.removeprefix("HTTP/"),
                ip=str(server[0]) if server else "",
                is_truncated=is_truncated,
            )


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float:
    """Return the seconds of a Retry-After header, at most a day; 0 without one."""
    value = headers.get("retry-after", "").strip()
    if value.isdigit():
        return min(float(value), MAX_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(0.0, at.timestamp() - now), MAX_RETRY_AFTER_S)


def timestamp(at: float) -> str:
    """Return a time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, tz=UTC).isoformat()


def _checked_backend(allow_private: bool) -> httpcore2.AsyncNetworkBackend:
    """Return a network backend that resolves a name once, checks the addresses and connects to one of them."""
    import httpcore2

    class CheckedBackend(httpcore2.AnyIOBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> httpcore2.AsyncNetworkStream:
            addresses = await _resolved(host, port, allow_private)
            problem: httpcore2.ConnectError | httpcore2.ConnectTimeout | None = None
            for address in addresses[:3]:
                try:
                    return await super().connect_tcp(address, port, timeout, local_address, socket_options)
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    problem = error
            raise problem or httpcore2.ConnectError(f"{host} has no address")

    return CheckedBackend()


async def _resolved(host: str, port: int, allow_private: bool) -> list[str]:
    """Return the addresses of a host.

    Raises:
        UnresolvedHostError: it has none.
        PrivateAddressError: one of them is not public.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise UnresolvedHostError(f"{host} has no address: {error}") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    private = [address for address in addresses if not is_public_address(address)]
    if private and not allow_private:
        raise PrivateAddressError(f"{host} has the address {private[0]}, which is not public")
    return addresses
