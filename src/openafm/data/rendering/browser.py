"""One Chromium process with one tab, and the Playwright driver that controls it. All of it can be killed at any time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from openafm.core.errors import OpenAFMError
from openafm.core.libraries import MissingLibraryError, needed
from openafm.data.rendering.config import RenderConfig
from openafm.data.rendering.requests import PageRequests

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Playwright, Request, Route
    from psutil import Process

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_CLOSE_S, _LAUNCH_S = 3.0, 60.0
_VIEWPORT = {"width": 1280, "height": 1024}
_MEMORY_CHECK_PAGES = 10
# Requests are answered by `PageRequests`. What it cannot see (WebSockets, WebRTC, prefetches) ends at a closed port.
_NO_NETWORK = (
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--dns-prefetch-disable",
)
_ARGUMENTS = (
    *_NO_NETWORK,
    "--disable-gpu",
    "--mute-audio",
    "--disable-dev-shm-usage",
    "--blink-settings=imagesEnabled=false",
)
_starting: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class RenderingUnavailableError(OpenAFMError):
    """Playwright or Chromium is not installed, or Chromium does not start."""


def find_executable(config: RenderConfig) -> str:
    """Return the path of Chromium.

    Raises:
        RenderingUnavailableError: Playwright or Chromium is not installed.
    """
    try:
        with needed("rendering", "playwright and psutil", "render"):
            for name in ("playwright.async_api", "psutil"):
                importlib.import_module(name)
    except MissingLibraryError as error:
        raise RenderingUnavailableError(str(error)) from error
    if config.executable and not Path(config.executable).is_file():
        raise RenderingUnavailableError(f"there is no Chromium at '{config.executable}'; set executable to its path")
    found = config.executable or next(filter(None, map(shutil.which, _NAMES)), None)
    if not found:
        raise RenderingUnavailableError(
            "rendering needs Chromium, and PATH has none; install it with: apt install chromium-headless-shell, or set "
            "executable to its path"
        )
    return found


class Browser:
    """A browser that shows one page after another. `requests` answers the requests of the current one."""

    def __init__(self, config: RenderConfig) -> None:
        self._config = config
        self._executable = find_executable(config)
        self._driver: Playwright | None = None
        self._process: Process | None = None
        self._browser: Any = None
        self._context: BrowserContext | None = None
        self._page: Page | None = None
        self._num_pages = 0
        self.requests: PageRequests | None = None

    async def page(self) -> Page:
        """Return the tab of a running browser; the browser is started and its context replaced as needed.

        Raises:
            RenderingUnavailableError: Chromium does not start.
        """
        from playwright.async_api import Error

        if self._num_pages % _MEMORY_CHECK_PAGES == 0 and self.memory_mb() > self._config.max_memory_mb:
            await self.stop()
        if self._driver is not None:
            try:
                async with asyncio.timeout(_CLOSE_S):
                    return await self._tab()
            except (Error, TimeoutError):  # it ended or stalled between two pages
                await self.stop(kill=True)
        await self._start()
        return await self._tab()

    def memory_mb(self) -> float:
        """Return the memory of all processes of this browser in MB, without what they share."""
        import psutil

        total = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):  # it has ended
                used = process.memory_info()
                total += used.rss - getattr(used, "shared", 0)
        return total / 1e6

    async def stop(self, *, kill: bool = False) -> None:
        """End the browser and the driver. They are killed if they do not answer, Chromium at once with `kill`."""
        processes, driver, browser = self._processes(), self._driver, self._browser
        self._driver = self._process = self._browser = self._context = self._page = None
        self._num_pages = 0
        if driver is None:
            return
        if kill:
            _kill(processes[:-1])
        try:
            with contextlib.suppress(Exception):  # a broken driver raises anything
                async with asyncio.timeout(_CLOSE_S):
                    if browser is not None and not kill:
                        await browser.close()
                    await driver.stop()
        finally:
            _kill(processes)

    async def _start(self) -> None:
        """Start the driver and Chromium."""
        import psutil
        from playwright.async_api import Error, async_playwright

        async with _starting.setdefault(asyncio.get_running_loop(), asyncio.Lock()):  # the driver is the new child
            before = {child.pid for child in psutil.Process().children()}
            self._driver = await async_playwright().start()
            self._process = next((child for child in psutil.Process().children() if child.pid not in before), None)
        sandbox = self._config.sandbox
        sandbox = (not hasattr(os, "geteuid") or os.geteuid() != 0) if sandbox is None else sandbox
        try:
            self._browser = await self._driver.chromium.launch(
                executable_path=self._executable,
                chromium_sandbox=sandbox,
                args=list(_ARGUMENTS),
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
                timeout=_LAUNCH_S * 1000,
            )
        except Error as error:
            await self.stop()
            advice = "; containers without user namespaces need sandbox = false" if sandbox else ""
            lines = str(error).strip().splitlines() or ["no message"]
            raise RenderingUnavailableError(f"{self._executable} does not start: {lines[0]}{advice}") from error

    async def _tab(self) -> Page:
        """Return the tab; it is opened in a new context after `pages_per_context`."""
        if self._context is not None and self._num_pages % self._config.pages_per_context == 0:
            await self._context.close()
            self._page = None
        if self._page is None or self._page.is_closed():
            self._page = await self._open_tab()
        self._num_pages += 1
        return self._page

    async def _open_tab(self) -> Page:
        assert self._browser is not None
        self._context = context = await self._browser.new_context(
            user_agent=self._config.user_agent or None,
            viewport=_VIEWPORT,
            accept_downloads=False,
            service_workers="block",
            reduced_motion="reduce",
        )
        await context.add_init_script(path=Path(__file__).with_name("page_agent.js"))
        await context.route("**/*", self._route)
        page: Page = await context.new_page()
        page.set_default_timeout(self._config.timeout_s * 1000)
        return page

    async def _route(self, route: Route, request: Request) -> None:
        if self.requests is None:
            await route.abort("aborted")
        else:
            await self.requests.handle(route)

    def _processes(self) -> list[Process]:
        """Return the processes of Chromium, and the driver as the last one."""
        import psutil

        if self._process is None:
            return []
        with contextlib.suppress(psutil.Error):
            return [*self._process.children(recursive=True), self._process]
        return []


def _kill(processes: list[Process]) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended
            process.kill()
