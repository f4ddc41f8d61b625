"""Settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from openafm.core.config import Config
from openafm.core.errors import UsageError


class ServerSetupError(UsageError):
    """The server cannot start with these settings."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Config):
    """Hold the settings of a server.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        models: names or paths of the bundles to serve, the default first; empty: all bundles of this machine.
        requires_key: require a key on a loopback address too. Other addresses always require one.
        tls_certificate, tls_key: PEM files; both or neither.
        workers: processes that share the port and the mapped weights.
        guardrails: check prompts and answers with the built-in blocklist.
        guardrail_model: folder of a guardrail model that checks them too, answers before they are released; empty: none.
        max_body_bytes: largest body of a request.
        header_seconds: limit for a client to send the headers of a request or to read 64 KiB of a reply that waits for it,
            and, at least 1 s, for an idle connection.
        body_seconds: limit for a client to send the body of a request.
        request_seconds: limit of one answer, from its start.
        queue_seconds: longest wait of a request for memory; then 429.
        drain_seconds: time for running answers after SIGTERM.
        max_running: answers that are computed at a time.
        max_waiting: requests that wait for memory or a place; further ones are answered with 429.
        max_choices: largest `n`.
        kv_bytes: memory for keys and values of running answers, adapters, vision encoders, and caches of prefixes and
            images, which are freed as answers need it; 0: a quarter of the physical memory.
        idle_seconds: a model without requests for this long is released; 0: never.
        max_connections: open connections; further ones are answered with 503.
        private: folder of a private node, which answers encrypted requests only; empty: an ordinary server.
        tool_files, type_files: Python files or modules with tools and generable classes for the playground; loopback
            addresses only.
        tool_token: what calls of these tools need, in the fragment of the page's address; empty: no page can call them.
        max_stored_responses, max_stored_bytes: limits of the conversations that /v1/responses stores; the oldest is dropped.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    models: tuple[str, ...] = ()
    requires_key: bool = False
    tls_certificate: str = ""
    tls_key: str = ""
    workers: int = 1
    guardrails: bool = True
    guardrail_model: str = ""
    max_body_bytes: int = 4 << 20
    header_seconds: float = 15.0
    body_seconds: float = 30.0
    request_seconds: float = 600.0
    queue_seconds: float = 60.0
    drain_seconds: float = 30.0
    max_running: int = 32
    max_waiting: int = 128
    max_choices: int = 8
    kv_bytes: int = 0
    idle_seconds: float = 1800.0
    max_connections: int = 512
    private: str = ""
    max_stored_responses: int = 1000
    max_stored_bytes: int = 64 << 20
    tool_files: tuple[str, ...] = ()
    type_files: tuple[str, ...] = ()
    tool_token: str = ""

    def __post_init__(self) -> None:
        self.require(0 <= self.port < 65536, f"port must lie in 0..65535, got {self.port}")
        self.require(self.workers > 0, f"workers must be positive, got {self.workers}")
        self.require(self.max_running > 0, f"max_running must be positive, got {self.max_running}")
        self.require(not self.tool_files or is_loopback(self.host), f"tools need a loopback address, got host {self.host}")
        self.require(self.kv_bytes >= 0, f"kv_bytes must not be negative, got {self.kv_bytes}")
        self.require(
            bool(self.tls_certificate) == bool(self.tls_key), "tls_certificate and tls_key belong together; set both"
        )

    @property
    def needs_keys(self) -> bool:
        """True if every request needs a key."""
        return self.requires_key or not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return True for `localhost` and loopback addresses."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
