"""A real server on a loopback port, in a thread of the test process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import httpx2 as httpx
import uvicorn
from starlette.types import ASGIApp

from openafm.serving.app import build_app
from openafm.serving.config import ServerConfig
from openafm.serving.server import bind, uvicorn_config

CONFIG = ServerConfig(port=0, models=("nano",))
# A connection that is kept may be closed by a server with short limits just when it is used again.
http = httpx.Client(timeout=60, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
"""One client for all tests: a new one loads the certificates of the system."""


@contextlib.contextmanager
def running_server(**settings: object) -> Iterator[str]:
    """Run the HTTP server and yield its URL."""
    config = ServerConfig(**{"port": 0, "models": ("nano",), "header_seconds": 2.0, **settings})
    with running(build_app(config), config) as url:
        yield url


@contextlib.contextmanager
def running(application: ASGIApp, config: ServerConfig = CONFIG) -> Iterator[str]:
    """Run an application and yield its URL."""
    with bind(config) as bound:
        server = uvicorn.Server(uvicorn_config(config, application))
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
