"""Servers and clients that the tests of this room share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from servers import running_server
from tiny_bundles import write_tiny_bundle


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
