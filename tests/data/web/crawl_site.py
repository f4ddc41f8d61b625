"""A small web site on the loopback interface that logs its requests; helper of the crawler's tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

from openafm.data.web.permissions.robots import Robots

TEXT = "The harbor of the old town has a long wall of gray stone and a light that turns all night. "


@dataclass(frozen=True)
class Request:
    """A request as the server saw it."""

    at: float
    path: str
    headers: dict[str, str]


@dataclass
class Answer:
    """What the server sends. `seconds` delays the answer."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/html; charset=utf-8"})
    seconds: float = 0.0


@dataclass
class Site:
    """Paths and their answers; a function is called with the request's headers. Unknown paths are 404."""

    answers: dict[str, Answer | Callable[[dict[str, str]], Answer]]
    robots: str = ""
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def paths(self) -> list[str]:
        """Requested paths without those of the origin's own files."""
        own = ("/robots.txt", "/.well-known/tdmrep.json")
        return [request.path for request in self.requests if request.path not in own]

    def answer(self, path: str, headers: dict[str, str]) -> Answer:
        """The answer to a request."""
        if path == "/robots.txt" and path not in self.answers:
            return Answer(self.robots.encode(), 200 if self.robots else 404, {"Content-Type": "text/plain"})
        found = self.answers.get(path, Answer(b"not here", 404))
        return found if isinstance(found, Answer) else found(headers)

    def violations(self, delay: float, agent: str = "OpenAFMBot", tolerance: float = 0.0) -> list[str]:
        """Requests of paths that robots.txt forbids, and requests closer to the one before than the delay."""
        rules = Robots.parse(self.robots.encode())
        found = [f"forbidden {path}" for path in self.paths() if not rules.allows(agent, f"{self.url}{path}")]
        for before, after in pairwise(self.requests):
            if after.at - before.at < delay - tolerance:
                found.append(f"{after.path} {after.at - before.at:.3f} s after {before.path}")
        return found


def page(*links: str, text: str = TEXT * 20, head: str = "") -> Answer:
    """An HTML page with links."""
    anchors = "".join(f'<p><a href="{link}">link to {link}</a></p>' for link in links)
    return Answer(f"<html><head><title>A page</title>{head}</head><body><p>{text}</p>{anchors}</body></html>".encode())


def tree(num_pages: int, **settings: object) -> Site:
    """A site whose page i links to the pages 2i+1 and 2i+2, back to the first, and to a forbidden page."""
    answers: dict[str, Answer | Callable[[dict[str, str]], Answer]] = {}
    for index in range(num_pages):
        links = [f"/page/{each}" for each in (2 * index + 1, 2 * index + 2) if each < num_pages]
        path = f"/page/{index}" if index else "/"
        answers[path] = page("/", "/private/secret", *links, text=f"Page {index}. " + TEXT * 20)
    return Site(answers, robots="User-agent: *\nDisallow: /private/\n", **settings)  # type: ignore[arg-type]


@contextmanager
def serve(site: Site, port: int = 0) -> Iterator[Site]:
    """Serve a site on the loopback interface while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            site.requests.append(Request(time.time(), self.path, headers))
            answer = site.answer(self.path, headers)
            time.sleep(answer.seconds)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if "Transfer-Encoding" not in answer.headers and "Content-Length" not in answer.headers:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
