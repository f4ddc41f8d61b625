"""Answer the requests of rendered pages. Chromium has no network of its own: this module fetches by the crawler's rules."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from openafm.data.rendering.config import RenderConfig
from openafm.data.web.crawl.fetch import Fetched, FetchFailure, FetchLimits
from openafm.data.web.urls import canonical_url, host_of

if TYPE_CHECKING:
    from playwright.async_api import Request, Route

Refusal = Callable[[str], Awaitable[str]]
"""A hook that returns why a URL must not be requested, such as a rule of robots.txt; empty if it may be."""

OUTCOMES = ("ok", "cached", "blocked", "refused", "failed", "navigation", "over_budget")
"""Outcomes of a `PageRequest`. `blocked` is a type that is never loaded, `refused` is by the hook."""

MAX_REDIRECTS = 5
_LOADED = frozenset({"script", "stylesheet", "xhr", "fetch"})
_CACHED = frozenset({"script", "stylesheet"})
_PASSED = ("accept", "accept-language", "content-type", "origin", "referer", "x-requested-with")
_DROPPED = ("content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive", "set-cookie")


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """A request of a page; see `OUTCOMES`. `detail` is the reason of a refusal or failure."""

    url: str
    kind: str
    outcome: str
    num_bytes: int = 0
    detail: str = ""


class ResourceSource(Protocol):
    """Where scripts and data come from: a `Fetcher`, or the file of a crawl."""

    async def fetch(
        self, url: str, limits: FetchLimits, *, headers: Mapping[str, str] | None = None
    ) -> Fetched | FetchFailure: ...


class ResourceCache:
    """Scripts and style sheets that pages of one site share; the least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._answers: OrderedDict[str, Fetched] = OrderedDict()

    def get(self, url: str) -> Fetched | None:
        """Return the answer of a URL, or None."""
        if url in self._answers:
            self._answers.move_to_end(url)
        return self._answers.get(url)

    def put(self, url: str, answer: Fetched) -> None:
        """Keep an answer."""
        if len(answer.body) > self._max_bytes // 4:
            return
        if (old := self._answers.pop(url, None)) is not None:
            self._num_bytes -= len(old.body)
        self._answers[url] = answer
        self._num_bytes += len(answer.body)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._answers.popitem(last=False)[1].body)


@dataclass
class PageRequests:
    """The requests of one page. The first navigation gets `html`; all others are fetched within limits, or aborted."""

    config: RenderConfig
    source: ResourceSource
    cache: ResourceCache
    html: bytes
    content_type: str
    refusal: Refusal | None
    log: list[PageRequest] = field(default_factory=list)
    _is_open: bool = True
    _is_served: bool = False
    _num_active: int = 0
    _num_bytes: int = 0
    _hosts: dict[str, asyncio.Semaphore] = field(init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._hosts = defaultdict(lambda: asyncio.Semaphore(self.config.connections_per_host))
        self._idle.set()

    @property
    def is_idle(self) -> bool:
        """True if no request is waiting for its answer."""
        return self._num_active == 0

    async def wait_idle(self) -> None:
        """Return when no request is waiting for its answer."""
        await self._idle.wait()

    def close(self) -> None:
        """Abort requests from now on."""
        self._is_open = False

    async def handle(self, route: Route) -> None:
        """Answer a request of the browser."""
        from playwright.async_api import Error

        self._num_active += 1
        self._idle.clear()
        try:
            with contextlib.suppress(Error):  # the page is closed, and no caller waits for the answer
                await self._answer(route)
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self._idle.set()

    async def _answer(self, route: Route) -> None:
        request = route.request
        kind = request.resource_type
        if not self._is_open:
            await route.abort("aborted")
        elif request.is_navigation_request():
            if self._is_served:  # a frame, or a script or click that leads elsewhere; this error keeps the page
                self._note(request, "blocked" if request.frame.parent_frame else "navigation")
                await route.abort("aborted")
                return
            self._is_served = True
            await route.fulfill(status=200, body=self.html, headers={"content-type": self.content_type})
        elif kind not in _LOADED or request.method != "GET":
            self._note(request, "blocked", detail=request.method if kind in _LOADED else "")
            await route.abort("blockedbyclient")
        else:
            answer = await self._load(request)
            if answer is None:
                await route.abort("failed")
                return
            headers = {name: value for name, value in answer.headers.items() if name not in _DROPPED}
            await route.fulfill(status=answer.status, body=answer.body, headers=headers)

    async def _load(self, request: Request) -> Fetched | None:
        """Return the answer to a request from the cache or the network; None if there is none."""
        if request.resource_type in _CACHED and (found := self.cache.get(request.url)) is not None:
            self._note(request, "cached", len(found.body))
            return found
        if len(self.log) >= self.config.max_requests or self._num_bytes >= self.config.max_total_bytes:
            self._note(request, "over_budget")
            return None
        headers = {name: value for name, value in request.headers.items() if name in _PASSED}
        answer = await self.fetch(request.url, headers)
        if not isinstance(answer, Fetched):
            self._note(request, answer.reason if answer.reason == "refused" else "failed", detail=answer.detail)
            return None
        self._num_bytes += len(answer.body)
        self._note(request, "ok", len(answer.body))
        if request.resource_type in _CACHED and answer.status == 200:
            self.cache.put(request.url, answer)
        return answer

    async def fetch(self, url: str, headers: dict[str, str]) -> Fetched | FetchFailure:
        """Fetch a URL after its redirects. The hook is asked about each address."""
        limits = FetchLimits(
            max_bytes=self.config.max_request_bytes, timeout_s=self.config.request_timeout_s, content_types=()
        )
        for _ in range(MAX_REDIRECTS + 1):
            if not canonical_url(url):
                return FetchFailure("refused", f"'{url[:200]}' is not a web address", 0.0)
            if self.refusal is not None and (reason := await self.refusal(url)):
                return FetchFailure("refused", reason, 0.0)
            async with self._hosts[host_of(url)]:
                answer = await self.source.fetch(url, limits, headers=headers)
            location = answer.headers.get("location", "") if isinstance(answer, Fetched) else ""
            if isinstance(answer, FetchFailure) or not (300 <= answer.status < 400 and location):
                return answer
            url = canonical_url(location, url)
        return FetchFailure("redirects", f"more than {MAX_REDIRECTS}", 0.0)

    def _note(self, request: Request, outcome: str, num_bytes: int = 0, detail: str = "") -> None:
        if len(self.log) < 10 * self.config.max_requests:  # a page may ask forever
            kind = request.resource_type
            self.log.append(
                PageRequest(url=request.url[:2000], kind=kind, outcome=outcome, num_bytes=num_bytes, detail=detail[:500])
            )
