"""The config of a renderer: limits of time, memory, requests and interactions of each page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.core.config import Config

if TYPE_CHECKING:
    from openafm.data.rendering.renderer import Renderer


@dataclass(frozen=True, kw_only=True)
class RenderConfig(Config):
    """Rendering of pages.

    `executable` is the path of Chromium; empty searches PATH. `sandbox` None uses Chromium's sandbox except as root, where
    Chromium cannot start with it. A page is settled after `quiet_ms` without new content, requests or short timers, at the
    latest after `settle_s`; `interaction_s`, `max_clicks` and `max_scrolls` bound consent, "load more", tabs and scrolling.
    After `timeout_s` the page fails. Each of the `concurrency` slots has a browser of its own, which is restarted above
    `max_memory_mb`; its context is replaced after `pages_per_context`.
    """

    executable: str = ""
    sandbox: bool | None = None
    concurrency: int = 2
    user_agent: str = ""
    allow_private_addresses: bool = False
    quiet_ms: int = 30
    settle_s: float = 5.0
    interaction_s: float = 5.0
    timeout_s: float = 20.0
    max_clicks: int = 12
    max_scrolls: int = 10
    screenshot: bool = True
    max_requests: int = 100
    max_request_bytes: int = 8 << 20
    max_total_bytes: int = 32 << 20
    max_dom_bytes: int = 16 << 20
    request_timeout_s: float = 5.0
    connections_per_host: int = 4
    cache_bytes: int = 32 << 20
    pages_per_context: int = 50
    max_memory_mb: int = 1024

    def __post_init__(self) -> None:
        for name in ("concurrency", "quiet_ms", "connections_per_host", "pages_per_context", "max_memory_mb"):
            self.require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; use 1 or more")
        for name in ("settle_s", "timeout_s", "request_timeout_s"):
            self.require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; use a number above 0")
        self.require(
            self.timeout_s > self.settle_s, f"timeout_s is {self.timeout_s}; use more than settle_s, {self.settle_s}"
        )

    def build(self) -> Renderer:
        """Return the renderer, an asynchronous context manager."""
        from openafm.data.rendering.renderer import Renderer

        return Renderer(self)
