"""A local HTTP server for generated sites, with a log of requests, conditional requests, failures and endless traps."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from openafm.data.sites.site import Site

_ENDLESS_LIMIT = 64 << 20  # bytes; bounds a client without a limit


@dataclass(frozen=True, kw_only=True)
class FailurePhase:
    """Answer the requests from number `start` to `stop` with `status`. robots.txt is counted, and is answered as usual."""

    start: int
    stop: int
    status: int = 503
    retry_after: str = "1"


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request as the server received it. `time` is `time.monotonic()` at arrival; `path` holds the query."""

    time: float
    path: str
    user_agent: str
    status: int
    method: str = "GET"


@dataclass(kw_only=True)
class SiteServer:
    """A running server: its URL without a final slash, and the requests so far."""

    url: str
    requests: list[RequestRecord] = field(default_factory=list)


@contextlib.contextmanager
def serve(
    site: Site, *, host: str = "127.0.0.1", port: int = 0, phases: Sequence[FailurePhase] = (), delay_s: float = 0.0
) -> Iterator[SiteServer]:
    """Serve a site until the block ends. Port 0 takes a free one; `delay_s` is the time before each answer."""
    server = _Server((host, port), site, tuple(phases), delay_s)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.site_server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], site: Site, phases: tuple[FailurePhase, ...], delay_s: float) -> None:
        super().__init__(address, _Handler)
        self.site, self.phases, self.delay_s = site, phases, delay_s
        self.site_server = SiteServer(url=f"http://{address[0]}:{self.server_address[1]}")
        self._lock = threading.Lock()
        self._count = 0

    def next_phase(self) -> FailurePhase | None:
        """Count a request and return the failure that applies to it."""
        with self._lock:
            number = self._count
            self._count += 1
        return next((phase for phase in self.phases if phase.start <= number < phase.stop), None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        arrived = time.monotonic()
        if self.server.delay_s:
            time.sleep(self.server.delay_s)
        phase = self.server.next_phase()
        path = urlsplit(self.path).path
        if path in ("/robots.txt", "/robots2.txt"):
            status = self._answer_robots(path)
        elif phase is not None:
            status = self._answer(phase.status, b"busy\n", "text/plain", {"Retry-After": phase.retry_after})
        else:
            status = self._answer_path(path)
        self.server.site_server.requests.append(
            RequestRecord(
                time=arrived,
                path=self.path,
                user_agent=self.headers.get("User-Agent", ""),
                status=status,
                method=self.command,
            )
        )

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing; `SiteServer.requests` is the log."""

    def _answer_robots(self, path: str) -> int:
        site, origin = self.server.site, self.server.site_server.url
        if path == "/robots.txt":
            if site.robots == "missing":
                return self._answer(404, b"not found\n", "text/plain")
            if site.robots == "error":
                return self._answer(503, b"error\n", "text/plain")
            if site.robots == "redirect":
                return self._answer(301, b"", "text/plain", {"Location": "/robots2.txt"})
            if site.robots == "endless":
                return self._answer_endless()
        return self._answer(200, site.robots_txt.replace("{origin}", origin).encode(), "text/plain")

    def _answer_endless(self) -> int:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        lines = b"User-agent: *\nDisallow: /private/\n" + b"# more\n" * 4096
        with contextlib.suppress(ConnectionError):
            for _ in range(_ENDLESS_LIMIT // len(lines)):
                self.wfile.write(lines)
        return 200

    def _answer_path(self, path: str) -> int:
        site = self.server.site
        if path == "/sitemap.xml":
            return self._answer(200, self._sitemap(), "application/xml")
        if (page := site.pages.get(path)) is not None:
            if self.headers.get("If-None-Match") == page.headers["etag"]:
                return self._answer(304, b"", "", dict(page.headers))
            return self._answer(page.status, page.html, "", dict(page.headers))
        if (asset := site.assets.get(path)) is not None:
            return self._answer(200, asset.body, asset.content_type, dict(asset.headers))
        if path == "/redirect":
            return self._answer(302, b"", "text/plain", {"Location": "/"})
        if path == "/loop":
            return self._answer(302, b"", "text/plain", {"Location": "/loop"})
        if site.traps and (links := trap_links(self.path)):
            items = "".join(f'<a href="{escape(link)}">{escape(link)}</a> ' for link in links)
            return self._answer(200, f"<html><body>{items}</body></html>".encode(), "text/html; charset=utf-8")
        return self._answer(404, b"not found\n", "text/plain")

    def _sitemap(self) -> bytes:
        origin = self.server.site_server.url
        entries = "".join(
            f"<url><loc>{escape(origin + page.path)}</loc>"
            + (f"<lastmod>{page.date}</lastmod>" if page.date else "")
            + "</url>"
            for page in self.server.site.pages.values()
            if not page.path.startswith("/private/")
        )
        header = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
        return f"{header}{entries}</urlset>\n".encode()

    def _answer(self, status: int, body: bytes, content_type: str, headers: dict[str, str] | None = None) -> int:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if content_type:
            self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != 304:
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)
        return status


def trap_links(url: str) -> tuple[str, ...]:
    """Return the links of an endless page: a calendar, combinations of filters, or session ids. Empty for other paths."""
    parts = urlsplit(url)
    if parts.path.startswith("/calendar/"):
        numbers = [int(part) for part in parts.path.split("/")[2:] if part.isdigit()]
        if len(numbers) != 2:
            return ()
        months = numbers[0] * 12 + numbers[1] - 1
        return tuple(f"/calendar/{month // 12}/{month % 12 + 1}" for month in (months - 1, months + 1))
    if parts.path == "/filter":
        query = parse_qs(parts.query)
        page = int(query.get("page", ["1"])[0]) if query.get("page", ["1"])[0].isdigit() else 1
        return tuple(
            f"/filter?page={page + 1}&sort={sort}&color={color}" for sort in ("up", "down") for color in ("red", "blue")
        )
    if parts.path == "/session":
        number = int("".join(filter(str.isdigit, parts.query))[:9] or "0")
        return tuple(f"/session?sid={number * 3 + step}" for step in (1, 2, 3))
    return ()
