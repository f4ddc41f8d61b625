"""A log, nodes and relays on loopback ports, in threads of the test process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from servers import CONFIG, running

from openafm.serving.config import ServerConfig
from openafm.serving.private.log.release_log import ReleaseLog
from openafm.serving.private.log.server import build_log_server
from openafm.serving.private.node.folder import open_keys, read_config, write_release
from openafm.serving.private.node.node import build_node
from openafm.serving.private.relay import build_relay


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
