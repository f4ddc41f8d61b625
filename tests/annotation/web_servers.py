"""A tool's application on a loopback port, in a thread of the test process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
from servers import running
from starlette.types import ASGIApp

from openafm.annotation.web import WebConfig


@contextlib.contextmanager
def running_app(app: ASGIApp, config: WebConfig | None = None) -> Iterator[str]:
    """Run an application and yield its URL."""
    with running(app, (config or WebConfig(port=0)).server()) as url:
        yield url


class Browser:
    """What a page does: keep the cookie, send the CSRF token with changes."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self.csrf = ""

    def open(self) -> dict[str, Any]:
        """Read the session and return it."""
        session: dict[str, Any] = self.get("/session")
        self.csrf = session["csrf"] or ""
        return session

    def get(self, path: str) -> Any:
        return self.send("GET", path).json()

    def post(self, path: str, body: Any = None) -> Any:
        """Send a change that succeeds, and return the reply."""
        reply = self.send("POST", path, json={} if body is None else body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {"X-CSRF-Token": self.csrf, "Content-Type": "application/json"} | arguments.pop("headers", {})
        return self._client.request(method, f"/api{path}", headers=headers, **arguments)

    def join(self, token: str, name: str, password: str = "a long password") -> None:
        """Create an account and read the session."""
        self.post("/join", {"invite": token, "name": name, "password": password})
        self.open()
