"""A log, nodes and relays on loopback ports, in threads of the test process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from openafm.serving.config import ServerConfig
from openafm.serving.private.log_server import build_log_server
from openafm.serving.private.node import build_node
from openafm.serving.private.node_folder import open_keys, read_config, write_release
from openafm.serving.private.relay import build_relay
from openafm.serving.private.release_log import ReleaseLog
from openafm.serving.server import bind, uvicorn_config

CONFIG = ServerConfig(port=0, models=("nano",))


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


class Deployment:
    """A log with a release, a node that runs it, and a relay to the node."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.log = ReleaseLog.create(folder / "log", "example.com/releases")
        self.log.add(write_release(folder / "node", ServerConfig(models=("nano",)), number=1, minimum=0))
        self.config = read_config(folder / "node", CONFIG)
        self.keys = open_keys(folder / "node", self.config)
        self.log_url = stack.enter_context(running(build_log_server(folder / "log")))
        self.node_url = stack.enter_context(running(build_node(self.config, self.keys), self.config))
        self.relay_url = stack.enter_context(running(build_relay(CONFIG, self.node_url)))
