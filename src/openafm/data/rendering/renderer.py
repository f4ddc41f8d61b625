"""Render pages in separate browsers, so that a page that hangs or crashes fails alone.

Each slot has a driver and a browser of its own. A page is read when it is settled: load is over, no request or short timer
is pending, and no node was added for `quiet_ms`. Waiting for an idle network instead takes at least 500 ms for each page.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urldefrag

from openafm.core.errors import OpenAFMError
from openafm.data.rendering.browser import Browser, RenderingUnavailableError, find_executable
from openafm.data.rendering.config import RenderConfig
from openafm.data.rendering.detector import needs_rendering
from openafm.data.rendering.requests import PageRequest, PageRequests, Refusal, ResourceCache, ResourceSource
from openafm.data.web.crawl.fetch import Fetcher, FetchFailure
from openafm.data.web.documents import Page
from openafm.data.web.urls import canonical_url

__all__ = [
    "FAILURES",
    "REASONS",
    "RenderError",
    "Rendered",
    "Renderer",
    "RenderingUnavailableError",
    "check_installation",
]

REASONS = ("unsettled", "interactions", "requests", "navigation")
"""Why a rendered page may lack content: it never settled, a budget of interactions or requests was spent, a script led to
another page."""

FAILURES = ("timeout", "crash", "too_large", "fetch")
"""Reasons of a `RenderError`."""


class RenderError(OpenAFMError):
    """A page cannot be rendered; `reason` is one of `FAILURES`. Other pages are not affected."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A rendered page: the DOM as UTF-8 HTML, a PNG screenshot (empty without one), `REASONS` why it may be incomplete."""

    dom: bytes
    screenshot: bytes = b""
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    requests: tuple[PageRequest, ...] = ()
    clicks: int = 0
    scrolls: int = 0


def check_installation(config: RenderConfig) -> None:
    """Check that Playwright and Chromium are installed.

    Raises:
        RenderingUnavailableError: one of them is missing; the message names the package to install.
    """
    find_executable(config)


class Renderer:
    """Renders pages. Use as an asynchronous context manager.

    Scripts and data come from `source`; without one they are fetched from the network, within the rules of the config.

    Raises on entry:
        RenderingUnavailableError: Playwright or Chromium is not installed.
    """

    def __init__(self, config: RenderConfig, source: ResourceSource | None = None) -> None:
        self.config = config
        self._cache = ResourceCache(config.cache_bytes)
        self._source = source or Fetcher(config.user_agent, allow_private_addresses=config.allow_private_addresses)
        self._browsers: list[Browser] = []
        self._free: asyncio.LifoQueue[Browser] = asyncio.LifoQueue()

    async def __aenter__(self) -> Self:
        self._browsers = [Browser(self.config) for _ in range(self.config.concurrency)]
        for browser in self._browsers:
            self._free.put_nowait(browser)
        if isinstance(self._source, Fetcher):
            await self._source.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(browser.stop() for browser in self._browsers))
        if isinstance(self._source, Fetcher):
            await self._source.__aexit__(kind, error, trace)

    def needs_rendering(self, page: Page) -> bool:
        """Return True if scripts probably add a part of the page's text."""
        return needs_rendering(page)

    def memory_mb(self) -> float:
        """Return the memory of all browsers in MB, without what their processes share."""
        return sum(browser.memory_mb() for browser in self._browsers)

    async def render(
        self, url: str, html: bytes | None = None, *, content_type: str = "", refusal: Refusal | None = None
    ) -> Rendered:
        """Render a page from its HTML; without it, the page is fetched.

        `refusal` returns why the page must not request a URL, such as a rule of robots.txt; empty if it may.

        Raises:
            RenderError: the page hangs, crashes the browser, is too large or cannot be fetched.
            RenderingUnavailableError: Chromium does not start.
        """
        start = time.monotonic()
        if not canonical_url(url):  # such as file:///etc/passwd
            raise RenderError("fetch", f"'{url}' is not a web address; expected http or https")
        requests = PageRequests(self.config, self._source, self._cache, html or b"", content_type or "text/html", refusal)
        if html is None:
            url = await self._fetch_page(url, requests)
        browser = await self._free.get()
        is_intact = False
        try:
            tab = await browser.page()  # a start of the browser does not count against the page
            browser.requests = requests
            async with asyncio.timeout(self.config.timeout_s):
                rendered = await self._render(tab, urldefrag(url).url, requests)
            is_intact = True
        except TimeoutError as error:
            raise RenderError("timeout", f"{url} is not rendered after {self.config.timeout_s:g} s") from error
        finally:
            requests.close()
            if not is_intact:
                await browser.stop(kill=True)
            self._free.put_nowait(browser)
        if not rendered.dom:
            raise RenderError("too_large", f"{url} has a DOM of more than {self.config.max_dom_bytes:,} characters")
        return replace(rendered, seconds=time.monotonic() - start)

    async def _fetch_page(self, url: str, requests: PageRequests) -> str:
        """Fetch the page itself and return its address after redirects."""
        answer = await requests.fetch(url, {})
        if isinstance(answer, FetchFailure):
            raise RenderError("fetch", f"{url} cannot be fetched: {answer.reason}: {answer.detail}")
        if answer.status != 200:
            raise RenderError("fetch", f"{url} cannot be fetched: HTTP {answer.status}")
        requests.html = answer.body
        requests.content_type = answer.headers.get("content-type", "text/html")
        return answer.url

    async def _render(self, page: Any, url: str, requests: PageRequests) -> Rendered:
        from playwright.async_api import Error

        try:
            await page.goto(url, wait_until="commit")
            found = await self._read(page, requests)
            screenshot, reasons = b"", _reasons(found, requests)
            if self.config.screenshot:
                screenshot = await page.screenshot(animations="disabled", caret="initial")
        except Error as error:
            lines = str(error).strip().splitlines() or ["no message"]
            raise RenderError("crash", f"{url} cannot be rendered: {lines[0]}") from error
        return Rendered(
            dom=found["dom"].encode("utf-8", "replace"),
            screenshot=screenshot,
            reasons=reasons,
            requests=tuple(requests.log),
            clicks=found["clicks"],
            scrolls=found["scrolls"],
        )

    async def _read(self, page: Any, requests: PageRequests) -> dict[str, Any]:
        """Let the page settle, interact with it, and return its DOM with what was done."""
        options = {
            "quiet_ms": self.config.quiet_ms,
            "settle_ms": self.config.settle_s * 1000,
            "interaction_ms": self.config.interaction_s * 1000,
            "max_clicks": self.config.max_clicks,
            "max_scrolls": self.config.max_scrolls,
            "max_dom_bytes": self.config.max_dom_bytes,
        }
        found: dict[str, Any] = await page.evaluate("options => __openafm.run(options)", options)
        if found["settled"] and not requests.is_idle:  # scripts that the page's own code cannot see, such as imports
            try:
                async with asyncio.timeout(self.config.settle_s):
                    await requests.wait_idle()
            except TimeoutError:
                found["settled"] = False
            again = await page.evaluate("options => __openafm.run(options)", options | {"max_clicks": 0, "max_scrolls": 0})
            again["settled"] = found["settled"] and again["settled"]
            found |= {name: again[name] for name in ("dom", "too_large", "settled")}
        return found


def _reasons(found: dict[str, Any], requests: PageRequests) -> tuple[str, ...]:
    outcomes = {each.outcome for each in requests.log}
    reasons = {
        "unsettled": not found["settled"],
        "interactions": found["exhausted"],
        "requests": "over_budget" in outcomes,
        "navigation": "navigation" in outcomes,
    }
    return tuple(name for name, holds in reasons.items() if holds)
