"""Crawl web pages into WARC files: politely, within robots.txt, resumable after any interruption.

A visit is: claim a page, read robots.txt of its origin once a day, request the page, write the capture to the WARC file,
note the outcome in the frontier. One host gets one request at a time by default. The next one follows `delay_s` after the
headers of the answer: the server has the request by then, so requests are never closer than the delay on the server either.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import Progress
from openafm.data.web.crawl.config import CrawlConfig, CrawlError, check_config, seed_url
from openafm.data.web.crawl.discovery import Discovery
from openafm.data.web.crawl.fetch import (
    IMAGE_TYPES,
    RETRIED,
    Fetched,
    Fetcher,
    FetchFailure,
    FetchLimits,
    timestamp,
)
from openafm.data.web.crawl.renderer import Renderer
from openafm.data.web.crawl.report import CrawlReport, report_of
from openafm.data.web.crawl.sitemaps import MAX_BYTES as SITEMAP_BYTES
from openafm.data.web.crawl.sitemaps import read_sitemap
from openafm.data.web.documents import Page
from openafm.data.web.frontier.frontier import Candidate, Frontier, Outcome, Task
from openafm.data.web.frontier.host_failures import BACKOFF_S, HostFailures
from openafm.data.web.permissions.opt_out import (
    PublisherException,
    crawl_agent,
    crawl_denial,
    read_exceptions,
    training_opt_out,
)
from openafm.data.web.permissions.origins import Origins
from openafm.data.web.permissions.robots import Robots
from openafm.data.web.urls import canonical_url, host_of, origin_of
from openafm.data.web.warc import DOM_TYPE, Capture, WarcWriter, warc_files
from openafm.data.web.warc_reader import recover

FRONTIER = "frontier.sqlite"
_SITEMAP_SCORE = 20.0
_SITEMAP_DEPTH = 2  # indexes of indexes
_MAX_INTERRUPTIONS = 3  # times max_attempts; a page that ends the process each time is given up


class Crawler:
    """Runs crawls of one config."""

    def __init__(self, config: CrawlConfig) -> None:
        self.config = config

    async def run(
        self, seeds: Sequence[str], folder: Path, *, renderer: Renderer | None = None, progress: Progress | None = None
    ) -> CrawlReport:
        """Crawl from `seeds` into `folder`, or continue the crawl that the folder holds.

        Raises:
            UsageError: a seed is not a web address.
            CrawlError: the folder holds a crawl of another config, or no page could be fetched.
            FolderInUseError: another process crawls into the folder.
            OutOfSpaceError: the disk is full; the crawl can be continued.
        """
        starts = [seed_url(url) for url in seeds]
        with ExitStack() as stack:
            stack.enter_context(folder_lock(folder))
            frontier = stack.enter_context(Frontier(folder / FRONTIER))
            check_config(frontier, self.config, folder)
            known = json.loads(frontier.fact("seeds") or "[]")
            frontier.set_fact("seeds", json.dumps(list(dict.fromkeys([*known, *starts]))))
            run = _Run(self.config, frontier, folder, renderer, progress)
            run.recover()
            description = {"http-header-user-agent": self.config.user_agent, "robots": "classic"}
            run.writer = stack.enter_context(
                WarcWriter(folder, max_bytes=self.config.max_warc_bytes, description=description)
            )
            return await run.crawl([Candidate(url=url, source="seed", score=10.0) for url in starts])


class _Run:
    """One run of a crawl."""

    writer: WarcWriter
    fetcher: Fetcher
    origins: Origins

    def __init__(
        self, config: CrawlConfig, frontier: Frontier, folder: Path, renderer: Renderer | None, progress: Progress | None
    ) -> None:
        self.config, self.frontier, self.folder = config, frontier, folder
        self.renderer, self.progress = renderer, progress
        self.exceptions: tuple[PublisherException, ...] = (
            read_exceptions(Path(config.exceptions)) if config.exceptions else ()
        )
        self.discovery = Discovery(config, frontier)
        self.failures = HostFailures(config, frontier)
        self.tasks: set[asyncio.Task[None]] = set()
        self.writing = asyncio.Lock()
        self.num_before = 0

    def recover(self) -> None:
        """Note captures that a killed process wrote but did not note, and let its interrupted pages wait again."""
        noted = self.frontier.warc_lengths()
        for name, length in noted.items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size < length:
                raise CrawlError(f"{path} is missing or shorter than the {length:,} bytes that were written; restore it")
        for path in warc_files(self.folder):
            for page in recover(path, noted.get(path.name, 0)):
                known = self.frontier.page(page.url)
                if known is not None and known["state"] in ("waiting", "held", "active"):
                    if known["kind"] == "image":
                        self.discovery.note_image(page, time.time(), path.name)
                        continue
                    inspected = self.discovery.inspect(page, page.body)
                    self.discovery.note(page, inspected, time.time(), known["depth"], path.name)
            self.frontier.set_warc_length(path.name, path.stat().st_size)
        self.frontier.interrupted(time.time(), self.config.delay_s, _MAX_INTERRUPTIONS * self.config.max_attempts)

    async def crawl(self, seeds: Iterable[Candidate]) -> CrawlReport:
        """Visit pages until none is left, the budget is spent or all wait for too long."""
        start = time.monotonic()
        self.frontier.add(seeds)
        if self.config.refetch_after_days is not None:
            self.frontier.refetch(time.time() - self.config.refetch_after_days * 86400)
        self.discovery = Discovery(self.config, self.frontier)
        self.num_before = self.discovery.num_done
        async with AsyncExitStack() as stack:
            self.fetcher = await stack.enter_async_context(
                Fetcher(self.config.user_agent, self.config.allow_private_addresses, self.config.max_connections)
            )
            self.origins = Origins(self.config, self.frontier, self.fetcher)
            try:
                next_at = await self._dispatch()
            finally:
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)
        num_fetched = self.discovery.num_done - self.num_before
        return report_of(self.frontier, num_fetched, time.monotonic() - start, next_at)

    async def _dispatch(self) -> float | None:
        """Start visits; return the time of the next page if the run ends because all wait for too long."""
        while True:
            now = time.time()
            is_spent = self.discovery.num_done + len(self.tasks) >= self.config.max_pages  # images are still fetched
            may_start = len(self.tasks) < self.config.max_connections and (not is_spent or self.config.images)
            per_host = self.config.connections_per_host
            task = self.frontier.claim(now, per_host, self.discovery.score, images_only=is_spent) if may_start else None
            if task is not None:
                self.tasks.add(asyncio.create_task(self._visit(task)))
                continue
            next_at = self.frontier.next_time(per_host, images_only=is_spent) if may_start else None
            if not self.tasks and (next_at is None or next_at - now > self.config.max_wait_s):
                return next_at
            await self._pause(None if next_at is None else max(0.001, next_at - now))

    async def _pause(self, seconds: float | None) -> None:
        """Wait until a visit ends or the time is over."""
        if not self.tasks:
            await asyncio.sleep(seconds or 0.0)
            return
        done, _ = await asyncio.wait(self.tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self.tasks -= done
        for each in done:
            each.result()

    async def _visit(self, task: Task) -> None:
        """Visit a held page."""
        refusal = crawl_denial(task.url, self.exceptions)
        if not refusal and task.kind == "page" and self.discovery.is_spent(task.domain):
            refusal = f"the budget of {self.config.max_pages_per_domain} pages of {task.domain} is spent"
        if refusal:
            self.frontier.finish(task.url, Outcome(state="denied", reason=refusal), time.time())
            return
        origin = origin_of(task.url)
        robots = self.origins.robots(origin)
        if robots is None:
            self._add_sitemaps(task, origin, await self.origins.load_robots(origin))
            return
        agent = crawl_agent(robots, self.config.agent, self.config.fallback_agents)
        decision = robots.decide(agent, task.url)
        delay = max(self.config.delay_s, robots.crawl_delay(agent) or 0.0)
        if not decision.allowed or delay > self.config.max_crawl_delay_s:
            reason = str(decision) if not decision.allowed else f"Crawl-delay of {delay:g} s"
            self.frontier.finish(task.url, Outcome(state="denied", reason=reason), time.time())
            return
        if self.origins.needs_tdm_file(origin):
            await self.origins.load_tdm_file(origin, delay)
            self.frontier.release(task)
            return
        await self._request(task, robots, delay, {"robots": str(decision), "agent": agent, "delay_s": delay})

    def _add_sitemaps(self, task: Task, origin: str, robots: Robots | str) -> None:
        """Add the sitemaps of a robots.txt that was just loaded, and let the page wait for the delay."""
        self.frontier.release(task)
        if isinstance(robots, str):
            state = self.frontier.host(task.host)
            wait = min(self.config.max_backoff_s, BACKOFF_S * 2**state.failures)
            self.frontier.delay_host(task.host, max(state.next_at, time.time() + wait))
            self.failures.host_failed(task.host, robots)
        elif self.config.sitemaps and not self.discovery.rules.refusal(
            origin + "/", depth=0
        ):  # not of hosts of images alone
            found = (canonical_url(each, origin) for each in robots.sitemaps)
            of_host = [each for each in found if each and host_of(each) == task.host]
            self.frontier.add(
                Candidate(url=each, source="sitemap", kind="sitemap", score=_SITEMAP_SCORE) for each in of_host
            )

    async def _request(self, task: Task, robots: Robots, delay: float, decision: dict[str, Any]) -> None:
        delay = max(delay, self.frontier.host(task.host).backoff)
        decision |= {"score": self.discovery.explanation(task)}
        self.frontier.start(task, time.time(), time.time() + delay, decision)
        limits = FetchLimits(max_bytes=self.config.max_page_bytes, timeout_s=self.config.timeout_s)
        headers: dict[str, str] = {}
        if task.kind == "sitemap":
            limits = replace(limits, max_bytes=SITEMAP_BYTES, content_types=(), truncate=True)
        elif task.kind == "image":
            limits = replace(limits, max_bytes=self.config.max_image_bytes, content_types=IMAGE_TYPES)
            headers["accept"] = f"{', '.join(IMAGE_TYPES)}, */*;q=0.1"
        languages = ", ".join(self.config.priority.languages)
        answer = await self.fetcher.fetch(
            task.url, limits, etag=task.etag, last_modified=task.last_modified, accept_language=languages, headers=headers
        )
        at = answer.at if isinstance(answer, FetchFailure) else answer.headers_at
        self.frontier.delay_host(task.host, at + delay)
        if isinstance(answer, FetchFailure):
            self.failures.failed(task, answer.reason, answer.detail, answer.at, retry=answer.reason in RETRIED)
        elif answer.status in (429, 503):
            self.failures.overloaded(task, answer, delay)
        elif answer.status >= 500:
            self.failures.failed(task, f"HTTP {answer.status}", "", at, retry=True)
        elif answer.status >= 400:
            self.frontier.finish(
                task.url,
                Outcome(state="failed", reason=f"HTTP {answer.status}", status=answer.status),
                at,
                attempt="answered",
            )
            self.failures.calm(task.host)
        elif 300 <= answer.status < 400 and answer.status != 304:
            await self._redirected(task, answer)
        elif task.kind == "image":
            await self._captured_image(task, answer, self._opt_out(task, answer, robots))
        elif task.kind == "sitemap":
            self._sitemap(task, answer)
        else:
            await self._captured(task, answer, robots, delay)

    async def _redirected(self, task: Task, answer: Fetched) -> None:
        """Put the target of a redirect into the frontier; it is visited under the rules of its own host."""
        target = canonical_url(answer.headers.get("location", ""), task.url)
        if target and task.depth == 0 and task.kind == "page":
            self.discovery.add_seed(target)
        rules = self.discovery.rules
        refusal = rules.image_refusal(target) if task.kind == "image" else rules.refusal(target, task.depth)
        refusal = refusal if target else "the target is not a web address"
        if task.redirects >= self.config.max_redirects:
            refusal = f"more than {self.config.max_redirects} redirects"
        reason = f"redirect to {target or answer.headers.get('location', '')[:200]}" + (f": {refusal}" if refusal else "")
        new = Candidate(
            url=target,
            source="redirect",
            kind=task.kind,
            parent=task.url,
            depth=task.depth,
            redirects=task.redirects + 1,
            score=task.score,
        )
        if task.kind == "image" and not refusal:
            self.frontier.add([new])
            await self._captured_image(task, replace(answer, body=b""), "")  # pages refer to the address before the redirect
            return
        outcome = Outcome(state="failed" if refusal else "done", reason=reason, status=answer.status)
        self.frontier.finish(
            task.url, outcome, answer.headers_at, attempt="answered", new=[] if refusal else [new], counters={"redirects": 1}
        )
        self.failures.calm(task.host)

    def _sitemap(self, task: Task, answer: Fetched) -> None:
        entries = [(canonical_url(each.url), each.is_sitemap) for each in read_sitemap(answer.body)]
        entries = [(url, is_sitemap) for url, is_sitemap in entries if host_of(url) == task.host]
        new = self.discovery.candidates([url for url, is_sitemap in entries if not is_sitemap], "sitemap", task.url, 1)
        if task.depth < _SITEMAP_DEPTH:
            below = [url for url, is_sitemap in entries if is_sitemap]
            new += [
                Candidate(
                    url=url, source="sitemap", kind="sitemap", parent=task.url, depth=task.depth + 1, score=_SITEMAP_SCORE
                )
                for url in below
            ]
        counters = {"sitemaps": 1, "sitemap_urls": len(new)}
        done = Outcome(state="done", status=answer.status)
        self.frontier.finish(task.url, done, answer.headers_at, attempt="answered", new=new, counters=counters)
        self.failures.calm(task.host)

    async def _captured(self, task: Task, answer: Fetched, robots: Robots, delay: float) -> None:
        """Write a page, or the note that it has not changed, to the WARC file and then to the frontier."""
        page = Page(
            url=task.url,
            body=answer.body,
            headers=answer.headers,
            status=answer.status,
            fetched_at=timestamp(answer.headers_at),
            opt_out=self._opt_out(task, answer, robots),
        )
        capture = Capture(page=page, request_headers=answer.request_headers, http_version=answer.http_version, ip=answer.ip)
        if self.renderer is not None and answer.status == 200 and self.renderer.needs_rendering(page):
            capture = await self._rendered(self.renderer, capture, delay)
            page = capture.page
        shown = replace(page, headers={**page.headers, "content-type": DOM_TYPE}) if capture.dom else page
        inspected = self.discovery.inspect(shown, capture.dom or page.body)
        async with self.writing:  # noted in the order of the file, so that the noted length covers noted captures only
            place = await asyncio.to_thread(self.writer.write, capture)
            self.discovery.note(page, inspected, answer.headers_at, task.depth, place)
        self.failures.calm(task.host)
        if self.progress is not None:
            self.progress.update(self.discovery.num_done, f"{self.discovery.num_done:,} pages, {task.domain}")

    async def _captured_image(self, task: Task, answer: Fetched, opt_out: str) -> None:
        """Write an image, or its redirect, to the WARC file and then to the frontier."""
        page = Page(
            url=task.url,
            body=answer.body,
            headers=answer.headers,
            status=answer.status,
            fetched_at=timestamp(answer.headers_at),
            opt_out=opt_out,
        )
        capture = Capture(page=page, request_headers=answer.request_headers, http_version=answer.http_version, ip=answer.ip)
        async with self.writing:
            place = await asyncio.to_thread(self.writer.write, capture)
            self.discovery.note_image(page, answer.headers_at, place)
        self.failures.calm(task.host)

    def _opt_out(self, task: Task, answer: Fetched, robots: Robots) -> str:
        """Return why what was fetched must not be used for training; empty if it may be."""
        is_image = task.kind == "image"
        return training_opt_out(
            task.url,
            answer.headers,
            b"" if is_image else answer.body,
            robots=robots,
            tdm_file=self.origins.tdm_file(origin_of(task.url)),
            exceptions=self.exceptions,
            agents=self.config.training_agents,
            is_image=is_image,
        )

    async def _rendered(self, renderer: Renderer, capture: Capture, delay: float) -> Capture:
        """Add the rendered DOM to a capture; a page that cannot be rendered stays static.

        The scripts and data of the page are requested without the delay, if robots.txt allows them. The delay to the next
        page begins after them.
        """
        page = capture.page
        try:
            rendered = await renderer.render(
                page.url, page.body, content_type=page.content_type, refusal=self._refusal_of_resource
            )
        except OpenAFMError:
            self.frontier.count("not_rendered")
            return capture
        finally:
            self.frontier.delay_host(host_of(page.url), time.time() + delay)
        self.frontier.count("rendered")
        opt_out = page.opt_out or training_opt_out(page.url, {}, rendered.dom)  # a script may add a meta element
        page = replace(page, opt_out=opt_out)
        return replace(capture, page=page, dom=rendered.dom, screenshot=rendered.screenshot)

    async def _refusal_of_resource(self, url: str) -> str:
        """Return why a rendered page must not request a URL."""
        if refusal := crawl_denial(url, self.exceptions):
            return refusal
        robots: Robots | str | None = self.origins.robots(origin_of(url))
        if robots is None:
            robots = await self.origins.load_robots(origin_of(url))
        if isinstance(robots, str):
            return robots
        decision = robots.decide(crawl_agent(robots, self.config.agent, self.config.fallback_agents), url)
        return "" if decision.allowed else str(decision)
