"""Rendering in the system's Chromium: content of scripts, rules of requests, and pages that hang or crash the browser."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import sys
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any, TypeVar

import pytest

from openafm.core.config import ConfigError
from openafm.data.rendering import RenderConfig
from openafm.data.rendering.browser import Browser
from openafm.data.rendering.renderer import Rendered, Renderer, RenderError, RenderingUnavailableError, check_installation
from openafm.data.rendering.requests import PageRequests, ResourceCache
from openafm.data.sites import SCRIPT_KINDS, SiteConfig, SitePage, serve
from openafm.data.web.crawl.fetch import Fetched, Fetcher, FetchFailure

T = TypeVar("T")
CONFIG = RenderConfig(
    concurrency=1, allow_private_addresses=True, settle_s=1.0, timeout_s=3.0, request_timeout_s=2.0, screenshot=False
)
HANG = b"<script>while (true) {}</script>"
FINE = b"<p id='here'></p><script>here.append('built')</script>"


def _is_installed() -> bool:
    try:
        check_installation(CONFIG)
    except RenderingUnavailableError:
        return False
    return True


needs_browser = pytest.mark.skipif(not _is_installed(), reason="needs playwright and Chromium (docs/data.md)")


@dataclass
class Running:
    """A renderer and the event loop that it runs in."""

    runner: asyncio.Runner
    renderer: Renderer

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def render(self, html: str | bytes, url: str = "http://127.0.0.1:9/", **options: Any) -> Rendered:
        body = html.encode() if isinstance(html, str) else html
        return self.wait(self.renderer.render(url, body, **options))


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with asyncio.Runner() as runner:
        renderer = CONFIG.build()
        runner.run(renderer.__aenter__())
        yield Running(runner, renderer)
        runner.run(renderer.__aexit__(None, None, None))


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A port of the loopback interface, and the first bytes of each connection to it."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(1.0)
                    seen.append(connection.recv(100))

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)


def recall(page: SitePage, dom: bytes) -> float:
    """The share of the gold text that the DOM holds."""
    html = re.sub(r"<(script|style)\b.*?</\1>", " ", dom.decode(), flags=re.DOTALL)
    plain = _words(unescape(re.sub(r"<[^>]+>", " ", html)))
    lines = [words for line in page.text.splitlines() if (words := _words(line))]
    return sum(len(line) for line in lines if line in plain) / sum(map(len, lines))


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))


@pytest.mark.long
@needs_browser
def test_text_of_each_kind_of_script_is_in_the_dom(running: Running) -> None:
    site = SiteConfig(
        seed=1, num_pages=len(SCRIPT_KINDS), languages=("en", "ja"), script_share=1.0, charset_share=0.5
    ).build()
    with serve(site) as server:
        for page in site.articles:
            rendered = running.render(page.html, server.url + page.path, content_type=page.headers["content-type"])
            assert recall(page, rendered.dom) == 1.0, page.script
            assert rendered.reasons == (), page.script
    assert {page.script for page in site.articles} == set(SCRIPT_KINDS)
    documents = [request for request in server.requests if not request.path.startswith("/api/")]
    assert documents == []  # the page itself came from its HTML


@needs_browser
def test_a_page_without_html_is_fetched(running: Running) -> None:
    site = SiteConfig(seed=2, num_pages=1, languages=("en",)).build()
    page = site.articles[0]
    with serve(site) as server:
        assert recall(page, running.wait(running.renderer.render(server.url + page.path)).dom) == 1.0
        with pytest.raises(RenderError, match="HTTP 404") as caught:
            running.wait(running.renderer.render(f"{server.url}/missing"))
    assert caught.value.reason == "fetch"


@needs_browser
def test_shadow_trees_and_replaced_tab_panels_are_in_the_dom(running: Running) -> None:
    shadow = "<x-card></x-card><script>document.querySelector('x-card').attachShadow({mode: 'closed'})"
    assert b"<p>inside</p>" in running.render(f"{shadow}.innerHTML = '<p>inside</p>'</script>").dom
    tabs = """<button role=tab aria-selected=true>A</button><button role=tab aria-selected=false id=b>B</button>
        <div role=tabpanel id=panel>the first panel</div>
        <script>b.onclick = () => { panel.replaceChildren('the second panel') }</script>"""
    found = running.render(tabs).dom
    assert b"the first panel" in found
    assert b"the second panel" in found


@needs_browser
def test_the_dom_declares_the_encoding_that_it_is_written_in(running: Running) -> None:
    rendered = running.render("<meta charset=shift_jis><p>港の町".encode("shift_jis"))
    assert '<meta charset="utf-8">' in rendered.dom.decode()
    assert "港の町" in rendered.dom.decode()


@needs_browser
def test_endless_pages_end_with_a_reason(running: Running) -> None:
    endless = "<main id=m></main><script>setInterval(() => m.append(document.createElement('p')), 10)</script>"
    # On a busy machine the page itself may pause for longer than the quiet time that counts as settled.
    assert any("unsettled" in running.render(endless).reasons for _ in range(5))
    more = "<button id=b>Load more</button><script>b.onclick = () => b.before(document.createElement('p'))</script>"
    rendered = running.render(more)
    assert (rendered.clicks, rendered.reasons) == (CONFIG.max_clicks, ("interactions",))
    away = "<p>stays</p><script>location.href = '/elsewhere'</script>"
    assert running.render(away).reasons == ("navigation",)


@needs_browser
def test_a_page_stops_after_its_rendering(running: Running) -> None:
    loop = "function loop() { count++; requestAnimationFrame(loop) }"
    running.render(f"<script>var count = 0; {loop} loop(); setInterval(() => count++, 10)</script>")
    tab = running.renderer._browsers[0]._page
    assert tab is not None
    first = running.wait(tab.evaluate("count"))
    running.wait(asyncio.sleep(0.3))
    # a frame that was requested before may still come
    assert 0 < running.wait(tab.evaluate("count")) <= first + 1


@needs_browser
def test_a_large_dom_is_an_error(running: Running) -> None:
    page = "<body><script>document.body.append(document.createComment('x'.repeat(17 << 20)))</script>"
    with pytest.raises(RenderError, match="DOM of more than") as caught:
        running.render(page)
    assert caught.value.reason == "too_large"


def test_only_web_addresses_are_rendered() -> None:
    for url in ("file:///etc/passwd", "chrome://version/", "javascript:1", "about:blank"):
        with pytest.raises(RenderError, match="not a web address"):
            asyncio.run(CONFIG.build().render(url, FINE))


@needs_browser
def test_only_allowed_requests_leave_the_page(running: Running, listener: tuple[int, list[bytes]]) -> None:
    port, seen = listener

    async def refusal(url: str) -> str:
        return "robots.txt line 1" if url.endswith("/forbidden") else ""

    html = f"""<link rel=preconnect href="http://127.0.0.1:{port}/a"><img src="http://127.0.0.1:{port}/b.png">
        <iframe src="http://127.0.0.1:{port}/c"></iframe><script>
        const caught = () => 0; new WebSocket("ws://127.0.0.1:{port}/d"); navigator.sendBeacon("http://127.0.0.1:{port}/e");
        fetch("http://127.0.0.1:{port}/f", {{method: "POST"}}).catch(caught);
        fetch("http://127.0.0.1:{port}/forbidden").catch(caught);
        </script>"""
    rendered = running.render(html, f"http://127.0.0.1:{port}/", refusal=refusal)
    assert seen == []
    outcomes = {request.url.rpartition("/")[2]: request.outcome for request in rendered.requests}
    assert outcomes["forbidden"] == "refused"
    assert outcomes["f"] == "blocked"
    assert "d" not in outcomes


def test_private_addresses_are_refused_unless_allowed(listener: tuple[int, list[bytes]]) -> None:
    port, seen = listener

    async def fetch(allow: bool) -> Fetched | FetchFailure:
        async with Fetcher("Test", allow_private_addresses=allow) as fetcher:
            requests = PageRequests(CONFIG, fetcher, ResourceCache(1000), b"", "text/html", None)
            return await requests.fetch(f"http://localhost:{port}/", {})

    refused = asyncio.run(fetch(False))
    assert isinstance(refused, FetchFailure)
    assert (refused.reason, seen) == ("private_address", [])
    asyncio.run(fetch(True))
    assert len(seen) == 1


@pytest.mark.long
@needs_browser
def test_a_page_that_hangs_or_crashes_costs_itself_only(running: Running) -> None:
    with pytest.raises(RenderError, match="not rendered after 3 s") as caught:
        running.render(HANG)
    assert caught.value.reason == "timeout"
    assert b"built" in running.render(FINE).dom

    async def crash() -> Rendered:
        work = asyncio.create_task(running.renderer.render("http://127.0.0.1:9/", HANG))
        await asyncio.sleep(0.5)
        for process in running.renderer._browsers[0]._processes():
            if "--type=renderer" in process.cmdline():
                process.kill()
        return await work

    with pytest.raises(RenderError) as caught:
        running.wait(crash())
    assert caught.value.reason == "crash"
    assert b"built" in running.render(FINE).dom


@needs_browser
@pytest.mark.slow
def test_a_browser_above_its_memory_bound_is_restarted() -> None:
    async def process_ids() -> tuple[int, int]:
        browser = Browser(replace(CONFIG, max_memory_mb=1))
        await browser.page()
        first = browser._process
        browser._num_pages = 10
        await browser.page()
        second = browser._process
        await browser.stop()
        assert first is not None
        assert second is not None
        assert not first.is_running()
        return first.pid, second.pid

    first, second = asyncio.run(process_ids())
    assert first != second


def test_a_missing_installation_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(RenderingUnavailableError, match=r"pip install 'openafm\[render\]'"):
        check_installation(CONFIG)
    monkeypatch.delitem(sys.modules, "playwright.async_api")
    if _is_importable():
        with pytest.raises(RenderingUnavailableError, match="apt install chromium-headless-shell"):
            check_installation(CONFIG)
        with pytest.raises(RenderingUnavailableError, match="there is no Chromium at"):
            check_installation(replace(CONFIG, executable=str(tmp_path / "chromium")))


def _is_importable() -> bool:
    try:
        import playwright.async_api  # noqa: F401
        import psutil  # noqa: F401
    except ImportError:
        return False
    return True


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="concurrency is 0"):
        RenderConfig(concurrency=0)
    with pytest.raises(ConfigError, match="timeout_s is 3"):
        RenderConfig(timeout_s=3.0, settle_s=5.0)
