"""Rendering: pages per second against waiting for an idle network, text recall, the detector, and memory over many pages.

    python benchmarks/rendering.py [--quick] [--json]

The pages are generated; scripts build each of them in one of seven ways, and a local server answers their requests. `ratio`
compares two renderers that differ in one point: the second one first waits for Playwright's `networkidle`. `plain` is
Playwright as its documentation shows it: a new tab, `goto(wait_until="networkidle")`, `content()`, without interactions.
`rss_growth_mb` is the growth of the private memory of this process, the driver and Chromium from the second tenth of the
pages to the last. A full run writes docs/benchmarks/rendering.json. Exit code 3 without Chromium.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

from openafm.data.rendering import RenderConfig, needs_rendering
from openafm.data.rendering.browser import find_executable
from openafm.data.rendering.renderer import Renderer, RenderingUnavailableError, check_installation
from openafm.data.rendering.requests import PageRequests
from openafm.data.sites import SCRIPT_KINDS, SiteConfig, SitePage, serve
from openafm.data.web.documents import Page

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "rendering.json"
NO_BROWSER = 3
CONFIG = RenderConfig(allow_private_addresses=True, screenshot=False, concurrency=1)
SITE = SiteConfig(seed=11, languages=("en", "de", "ja"), script_share=1.0, charset_share=0.0)


class NetworkIdleRenderer(Renderer):
    """The same renderer, but it waits until the network was idle for 500 ms."""

    async def _read(self, page: Any, requests: PageRequests) -> dict[str, Any]:
        await page.wait_for_load_state("networkidle")
        return await super()._read(page, requests)


def main() -> None:
    options = benchmark_parser(__doc__, "fewer pages").parse_args()
    try:
        check_installation(CONFIG)
    except RenderingUnavailableError as error:
        print(f"rendering: {error}", file=sys.stderr)
        sys.exit(NO_BROWSER)
    figures = asyncio.run(measure(num_pages=28 if options.quick else 140, num_for_memory=60 if options.quick else 1000))
    hand_in({"figures": figures}, REPORT, options)


async def measure(num_pages: int, num_for_memory: int) -> dict[str, Any]:
    site = replace(SITE, num_pages=num_pages).build()
    with serve(site) as server:
        quiet = await speed(CONFIG.build(), server.url, site.articles)
        idle = await speed(NetworkIdleRenderer(CONFIG), server.url, site.articles)
        plain = await plain_speed(server.url, site.articles)
        growth, peak, repeated = await memory(server.url, site.articles, num_for_memory)
    return {
        "ratio": round(quiet["pages_s"] / idle["pages_s"], 2),
        "rss_growth_mb": growth,
        "rss_peak_mb": peak,
        "pages_in_memory_run": repeated,
        **{key: round(value, 3) for key, value in quiet.items()},
        **{f"{key}_networkidle": round(value, 3) for key, value in idle.items()},
        **{f"{key}_plain": round(value, 3) for key, value in plain.items()},
        **detection(),
    }


async def speed(renderer: Renderer, url: str, pages: Sequence[SitePage]) -> dict[str, float]:
    """Pages per second of one renderer, and its text recall; the first seven pages warm up."""
    async with renderer:

        async def render(page: SitePage) -> bytes:
            rendered = await renderer.render(url + page.path, page.html, content_type=page.headers["content-type"])
            return rendered.dom

        return await _timed(render, pages)


async def plain_speed(url: str, pages: Sequence[SitePage]) -> dict[str, float]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=find_executable(CONFIG), chromium_sandbox=False)

        async def render(page: SitePage) -> bytes:
            tab = await browser.new_page()
            await tab.goto(url + page.path, wait_until="networkidle")
            content = await tab.content()
            await tab.close()
            return content.encode()

        try:
            return await _timed(render, pages)
        finally:
            await browser.close()


async def memory(url: str, pages: Sequence[SitePage], num_pages: int) -> tuple[float, float, int]:
    """Growth and peak of the private memory in MB while pages are rendered one after another."""
    import psutil

    async with CONFIG.build() as renderer:
        used = []
        for index in range(num_pages):
            page = pages[index % len(pages)]
            await renderer.render(url + page.path, page.html)
            own = psutil.Process().memory_info()
            used.append(renderer.memory_mb() + (own.rss - own.shared) / 1e6)
    tenth = max(1, num_pages // 10)
    growth = statistics.median(used[-tenth:]) - statistics.median(used[tenth : 2 * tenth])
    return round(growth, 1), round(max(used), 1), num_pages


def detection() -> dict[str, float]:
    """Precision and recall of the detector on a site with static pages and scripted ones, and its time for a page."""
    pages = replace(SITE, num_pages=300, script_share=0.4, charset_share=0.2).build().articles
    start = time.process_time()
    found = [needs_rendering(Page(url=page.path, body=page.html, headers=page.headers)) for page in pages]
    seconds = time.process_time() - start
    hits = sum(flag and page.needs_script for flag, page in zip(found, pages, strict=True))
    return {
        "detector_precision": round(hits / max(1, sum(found)), 3),
        "detector_recall": round(hits / sum(page.needs_script for page in pages), 3),
        "detector_ms": round(seconds / len(pages) * 1000, 3),
    }


async def _timed(render: Callable[[SitePage], Awaitable[bytes]], pages: Sequence[SitePage]) -> dict[str, float]:
    for page in pages[: len(SCRIPT_KINDS)]:
        await render(page)
    start = time.monotonic()
    doms = [await render(page) for page in pages]
    seconds = time.monotonic() - start
    return {
        "pages_s": len(pages) / seconds,
        "recall": statistics.mean(recall(page, dom) for page, dom in zip(pages, doms, strict=True)),
    }


def recall(page: SitePage, dom: bytes) -> float:
    """The share of the gold text that the DOM holds outside scripts."""
    html = re.sub(r"<(script|style)\b.*?</\1>", " ", dom.decode(), flags=re.DOTALL)
    plain = _words(unescape(re.sub(r"<[^>]+>", " ", html)))
    lines = [words for line in page.text.splitlines() if (words := _words(line))]
    return sum(len(line) for line in lines if line in plain) / sum(map(len, lines))


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))


if __name__ == "__main__":
    main()
