"""The files that speak for an origin: robots.txt and tdmrep.json; fetched once a day and stored in the frontier."""

from __future__ import annotations

import time

from openafm.data.web.crawl.config import CrawlConfig
from openafm.data.web.crawl.fetch import Fetcher, FetchFailure, FetchLimits, retry_after_seconds
from openafm.data.web.frontier.frontier import Frontier
from openafm.data.web.permissions.robots import CACHE_SECONDS, MAX_BYTES, MAX_REDIRECTS, Robots, RobotsCache
from openafm.data.web.urls import canonical_url, host_of

_TDM_FILE = "/.well-known/tdmrep.json"


class Origins:
    """Fetches and remembers the files of origins. Each request is followed by the delay of its host."""

    def __init__(self, config: CrawlConfig, frontier: Frontier, fetcher: Fetcher) -> None:
        self._config, self._frontier, self._fetcher = config, frontier, fetcher
        self._cache = RobotsCache()

    def robots(self, origin: str) -> Robots | None:
        """Return the rules of an origin from memory or the frontier; None if they must be loaded."""
        now = time.time()
        if (robots := self._cache.get(origin, now)) is None:
            stored = self._frontier.file(_robots_url(origin))
            if stored is not None and now - stored[0] < CACHE_SECONDS:
                robots = self._cache.put(origin, Robots.of_response(stored[1], stored[2]), stored[0])
        return None if robots is None or robots.is_unreachable else robots

    async def load_robots(self, origin: str) -> Robots | str:
        """Fetch robots.txt and return its rules, or the reason why it cannot be read for now."""
        status, body = await self._load(_robots_url(origin), self._config.delay_s)
        answer = Robots.of_response(status, body)
        robots = self._cache.put(origin, answer, time.time())
        if robots.is_unreachable:
            return f"robots.txt: {f'HTTP {status}' if status else body.decode('utf-8', 'replace')}"
        if not answer.is_unreachable:
            self._frontier.put_file(_robots_url(origin), status, body, time.time())
        return robots

    def needs_tdm_file(self, origin: str) -> bool:
        """Return True if tdmrep.json must be loaded before a page of the origin."""
        stored = self._frontier.file(origin + _TDM_FILE)
        return self._config.tdm_file and (stored is None or time.time() - stored[0] >= CACHE_SECONDS)

    def tdm_file(self, origin: str) -> bytes:
        """Return the content of tdmrep.json as it was loaded last; empty if the origin has none."""
        stored = self._frontier.file(origin + _TDM_FILE)
        return b"" if stored is None else stored[2]

    async def load_tdm_file(self, origin: str, delay: float) -> None:
        """Fetch tdmrep.json."""
        status, body = await self._load(origin + _TDM_FILE, delay)
        self._frontier.put_file(origin + _TDM_FILE, status, body if status == 200 else b"", time.time())

    async def _load(self, url: str, delay: float) -> tuple[int, bytes]:
        """Return status and body of a small file after redirects; status 0 and the reason without an answer."""
        limits = FetchLimits(max_bytes=MAX_BYTES, timeout_s=self._config.timeout_s, content_types=(), truncate=True)
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._fetcher.fetch(url, limits)
            if isinstance(answer, FetchFailure):
                self._frontier.delay_host(host_of(url), answer.at + delay)
                return 0, f"{answer.reason}: {answer.detail}".encode()
            wait = retry_after_seconds(answer.headers, answer.headers_at) if answer.status in (429, 503) else 0.0
            self._frontier.delay_host(host_of(url), answer.headers_at + max(delay, wait))
            target = canonical_url(answer.headers.get("location", ""), url) if 300 <= answer.status < 400 else ""
            if not target:
                return answer.status, answer.body
            url = target
        return 404, b""  # too many redirects count as no file (RFC 9309, 2.3.1.2)


def _robots_url(origin: str) -> str:
    return f"{origin}/robots.txt"
