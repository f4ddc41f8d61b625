"""A real server on a loopback port, in a thread of the test process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
import uvicorn
from tiny_bundles import write_tiny_bundle

from openafm.serving.app import build_app
from openafm.serving.config import ServerConfig
from openafm.serving.server import bind, uvicorn_config


@contextlib.contextmanager
def running_server(**settings: object) -> Iterator[str]:
    """Run a server and yield its URL."""
    config = ServerConfig(**{"port": 0, "models": ("nano",), "header_seconds": 2.0, **settings})
    with bind(config) as bound:
        server = uvicorn.Server(uvicorn_config(config, build_app(config)))
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


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny", context_length=256).path


@pytest.fixture(scope="session")
def url(tiny_path: Path) -> Iterator[str]:
    """The URL of a server without keys: nano, the default, and a tiny bundle of random weights."""
    with running_server(models=("nano", str(tiny_path))) as url:
        yield url


@pytest.fixture(scope="session")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


@pytest.fixture
def start_server() -> Iterator[Callable[..., str]]:
    """Return a function that starts a server with its own settings and returns its URL."""
    with contextlib.ExitStack() as servers:
        yield lambda **settings: servers.enter_context(running_server(**settings))
