"""Crawls of small local sites: what is fetched, refused, repeated, resumed and explained."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import urljoin

import pytest
from crawl_site import Answer, Site, page, serve, tree

from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.folder_lock import FolderInUseError, folder_lock
from openafm.data.web.crawl.config import CrawlConfig, CrawlError
from openafm.data.web.crawl.crawler import FRONTIER, Crawler
from openafm.data.web.crawl.renderer import Refusal
from openafm.data.web.crawl.report import CrawlReport
from openafm.data.web.documents import Page
from openafm.data.web.frontier.frontier import Frontier
from openafm.data.web.warc import warc_files
from openafm.data.web.warc_reader import read_pages

FAST = CrawlConfig(delay_s=0.0, allow_private_addresses=True, tdm_file=False, timeout_s=5.0, max_wait_s=5.0)


def crawl(site: Site, folder: Path, config: CrawlConfig = FAST, *paths: str, **arguments: object) -> CrawlReport:
    seeds = [f"{site.url}{path}" for path in paths or ("/",)]
    return asyncio.run(Crawler(config).run(seeds, folder, **arguments))  # type: ignore[arg-type]


def pages_of(folder: Path) -> list[Page]:
    return [each for path in warc_files(folder) for each in read_pages(path) if isinstance(each, Page)]


def paths_of(folder: Path, site: Site) -> list[str]:
    return [each.url.removeprefix(site.url) for each in pages_of(folder)]


def test_every_allowed_page_is_fetched_once(tmp_path: Path) -> None:
    with serve(tree(20)) as site:
        report = crawl(site, tmp_path)
    assert Counter(site.paths()) == Counter(site.answers.keys())
    assert sorted(paths_of(tmp_path, site)) == sorted(site.answers)
    assert (report.done, report.failed, report.denied, report.waiting) == (20, 0, 1, 0)
    assert report.reasons == {"denied: robots.txt line 2: Disallow: /private/": 1}
    assert all(each.headers["user-agent"].startswith("OpenAFMBot/") for each in site.requests)


def test_delay_and_crawl_delay_hold_on_the_server(tmp_path: Path) -> None:
    site = tree(4)
    with serve(site):
        crawl(site, tmp_path / "a", replace(FAST, delay_s=0.15, tdm_file=True))
    assert site.violations(0.15) == []
    slow = tree(3)
    slow.robots = "User-agent: *\nCrawl-delay: 0.3\nDisallow: /private/"
    with serve(slow):
        crawl(slow, tmp_path / "b")
    gaps = [after.at - before.at for before, after in pairwise(slow.requests[1:])]
    assert min(gaps) >= 0.3


def test_one_connection_per_host(tmp_path: Path) -> None:
    site = Site({"/": page(*(f"/{index}" for index in range(5)))})
    for index in range(5):
        site.answers[f"/{index}"] = replace(page(), seconds=0.1)
    with serve(site):
        crawl(site, tmp_path)
    times = [each.at for each in site.requests if each.path[1:].isdigit()]
    assert all(after - before >= 0.1 for before, after in pairwise(times))


def test_overload_slows_down_and_is_retried(tmp_path: Path) -> None:
    answers = [Answer(status=503, headers={"Retry-After": "2"}), page()]
    with serve(Site({"/": page("/busy"), "/busy": lambda headers: answers.pop(0)})) as site:
        report = crawl(site, tmp_path)
    first, second = (each.at for each in site.requests if each.path == "/busy")
    assert second - first >= 2.0
    assert (report.done, report.failed) == (2, 0)


def test_failures(tmp_path: Path) -> None:
    answers = {
        "/": page("/missing", "/image", "/large", "/bomb", "/slow", "/cut", "/error", "/plain"),
        "/image": Answer(b"x", headers={"Content-Type": "image/png"}),
        "/large": Answer(b"x" * 20_000),
        "/bomb": Answer(gzip.compress(bytes(50_000_000)), headers={"Content-Type": "text/html", "Content-Encoding": "gzip"}),
        "/slow": replace(page(), seconds=1.0),
        "/cut": Answer(b"x", headers={"Content-Type": "text/html", "Content-Length": "99", "Connection": "close"}),
        "/error": Answer(status=500),
        "/plain": Answer(b"x", headers={}),
    }
    config = replace(FAST, max_page_bytes=10_000, timeout_s=0.6, max_attempts=1, max_host_failures=9)
    with serve(Site(dict(answers))) as site:
        report = crawl(site, tmp_path, config)
    assert (report.done, report.failed) == (1, 8)
    with Frontier(tmp_path / FRONTIER) as frontier:
        reasons = {path: frontier.page(site.url + path)["reason"].partition(":")[0] for path in answers}  # type: ignore[index]
    assert reasons == {
        "/": "",
        "/image": "content_type",
        "/large": "too_large",
        "/bomb": "too_large",
        "/slow": "timeout",
        "/cut": "protocol",
        "/error": "HTTP 500",
        "/plain": "content_type",
    }


def test_redirects_are_visited_under_the_rules(tmp_path: Path) -> None:
    def to(target: str) -> Answer:
        return Answer(status=302, headers={"Location": target})

    answers = {"/": page("/a", "/b", "/loop"), "/a": to("/target"), "/b": to("/private/x"), "/loop": to("/loop?n=1")}
    answers |= {f"/loop?n={index}": to(f"/loop?n={index + 1}") for index in range(1, 9)}
    answers["/target"] = page()
    with serve(Site(dict(answers), robots="User-agent: *\nDisallow: /private")) as site:
        crawl(site, tmp_path)
    assert site.violations(0.0) == []
    assert "/target" in paths_of(tmp_path, site)
    assert "/loop?n=5" in site.paths()
    assert "/loop?n=6" not in site.paths()


@pytest.mark.parametrize("link", ["http://localhost:{port}/x", "http://[::1]:{port}/x", "http://2130706433:{port}/x"])
def test_private_addresses_are_refused(tmp_path: Path, link: str) -> None:
    with serve(Site({"/x": page()})) as site:
        port = site.url.rpartition(":")[2]
        with pytest.raises(CrawlError, match="not public"):
            asyncio.run(
                Crawler(replace(FAST, allow_private_addresses=False, max_host_failures=1)).run(
                    [link.format(port=port)], tmp_path
                )
            )
    assert site.requests == []


def test_traps_depth_budget_and_scope(tmp_path: Path) -> None:
    answers = {"/": page("http://other.invalid/", "/calendar/2093/01/", "/a/a/a/a/a/", "/s/0?sid=1", "/s/0?sid=2")}
    answers |= {f"/s/{index}": page(f"/s/{index + 1}") for index in range(30)}
    with serve(Site(dict(answers))) as site:
        crawl(site, tmp_path, replace(FAST, max_pages_per_template=10))
    assert sorted(site.paths()) == sorted(["/", *(f"/s/{index}" for index in range(10))])


def test_a_seed_that_redirects_to_another_host_is_followed(tmp_path: Path) -> None:
    with serve(Site({"/": page("/a"), "/a": page()})) as site:
        elsewhere = Answer(status=301, headers={"Location": f"{site.url.replace('127.0.0.1', 'localhost')}/"})
        with serve(Site({"/": elsewhere})) as seed:
            report = crawl(seed, tmp_path, replace(FAST, scope="host"))
    assert (report.done, site.paths()) == (2, ["/", "/a"])


def test_cookies_are_not_kept(tmp_path: Path) -> None:
    answers = {"/": replace(page("/a"), headers={"Content-Type": "text/html", "Set-Cookie": "a=1"}), "/a": page()}
    with serve(Site(dict(answers))) as site:
        crawl(site, tmp_path)
    assert all("cookie" not in each.headers for each in site.requests)


def test_budget_of_pages(tmp_path: Path) -> None:
    with serve(tree(20)) as site:
        report = crawl(site, tmp_path, replace(FAST, max_pages=5))
        assert (report.done, len(paths_of(tmp_path, site))) == (5, 5)
        report = crawl(site, tmp_path, replace(FAST, max_pages=12))
    assert (report.fetched, report.done) == (7, 12)
    assert max(Counter(site.paths()).values()) == 1


def test_sitemaps_are_followed(tmp_path: Path) -> None:
    names = "".join(f"<url><loc>URL/hidden/{index}</loc></url>" for index in range(3))
    site = Site({"/": page(), **{f"/hidden/{index}": page() for index in range(3)}})
    with serve(site):
        site.robots = f"User-agent: *\nAllow: /\nSitemap: {site.url}/index.xml"
        index = f"<sitemapindex><sitemap><loc>{site.url}/map.xml.gz</loc></sitemap></sitemapindex>"
        site.answers["/index.xml"] = Answer(index.encode(), headers={"Content-Type": "application/xml"})
        map_xml = f"<?xml version='1.0'?><urlset>{names.replace('URL', site.url)}</urlset>"
        site.answers["/map.xml.gz"] = Answer(gzip.compress(map_xml.encode()), headers={"Content-Type": "application/gzip"})
        report = crawl(site, tmp_path)
    assert report.done == 4


def test_opt_outs_are_stored_with_the_page(tmp_path: Path) -> None:
    head = '<meta name="robots" content="noai">'
    robots = "User-agent: *\nAllow: /\nUser-agent: Applebot-Extended\nDisallow: /licensed"
    answers = {"/": page("/licensed", "/meta", "/tdm"), "/licensed": page(), "/meta": page(head=head), "/tdm": page()}
    site = Site(dict(answers), robots=robots)
    site.answers["/.well-known/tdmrep.json"] = Answer(b'[{"location": "/tdm", "tdm-reservation": 1}]')
    with serve(site):
        report = crawl(site, tmp_path, replace(FAST, tdm_file=True))
    assert report.opted_out == 3
    assert {each.url.removeprefix(site.url): each.opt_out for each in pages_of(tmp_path)} == {
        "/": "",
        "/licensed": "Applebot-Extended: robots.txt line 4: Disallow: /licensed",
        "/meta": "meta robots: noai",
        "/tdm": "tdmrep.json: /tdm",
    }


def test_nofollow_is_respected(tmp_path: Path) -> None:
    answers = {"/": page("/a", head='<meta name="robots" content="nofollow">'), "/a": page()}
    with serve(Site(dict(answers))) as site:
        crawl(site, tmp_path)
    assert site.paths() == ["/"]


def test_exceptions_forbid_crawling(tmp_path: Path) -> None:
    file = tmp_path / "exceptions.toml"
    file.write_text('[[publisher]]\ndomain = "127.0.0.1"\npath = "/page/1*"\ncrawl = false\nreason = "asked"\n')
    with serve(tree(4)) as site:
        report = crawl(site, tmp_path / "crawl", replace(FAST, exceptions=str(file)))
    assert "/page/1" not in site.paths()
    assert report.reasons["denied: exception for 127.0.0.1: asked"] == 1


def test_unchanged_pages_are_not_sent_again(tmp_path: Path) -> None:
    def conditional(headers: dict[str, str]) -> Answer:
        if headers.get("if-none-match") == '"1"':
            return Answer(status=304, headers={"ETag": '"1"'})
        return replace(page("/b"), headers={"Content-Type": "text/html", "ETag": '"1"'})

    config = replace(FAST, refetch_after_days=0.0)
    with serve(Site({"/": conditional, "/b": page()})) as site:
        crawl(site, tmp_path, config)
        report = crawl(site, tmp_path, config)
        assert Counter(site.paths()) == {"/": 2, "/b": 2}
    assert report.fetched == 2
    assert sorted(paths_of(tmp_path, site)) == ["/", "/b", "/b"]


def test_another_config_is_refused(tmp_path: Path) -> None:
    with serve(tree(2)) as site:
        crawl(site, tmp_path)
        with pytest.raises(CrawlError, match=r"another config \(max_depth 20 -> 3\)"):
            crawl(site, tmp_path, replace(FAST, max_depth=3))


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with folder_lock(tmp_path), pytest.raises(FolderInUseError):
        asyncio.run(Crawler(FAST).run(["http://127.0.0.1:9/"], tmp_path))


def test_a_shortened_warc_file_is_an_error(tmp_path: Path) -> None:
    with serve(tree(2)) as site:
        crawl(site, tmp_path)
        path = warc_files(tmp_path)[0]
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(CrawlError, match="restore it"):
            crawl(site, tmp_path)


def test_captures_that_were_not_noted_are_recovered(tmp_path: Path) -> None:
    """A process killed between the WARC file and the frontier has written a page and not noted it."""
    with serve(tree(3)) as site:
        crawl(site, tmp_path, replace(FAST, max_pages=1))
        before = (tmp_path / FRONTIER).read_bytes()
        crawl(site, tmp_path, replace(FAST, max_pages=3))
        (tmp_path / FRONTIER).write_bytes(before)
        report = crawl(site, tmp_path, replace(FAST, max_pages=3))
    assert (report.fetched, report.done) == (0, 3)
    assert Counter(site.paths()) == {"/": 1, "/page/1": 1, "/page/2": 1}


@pytest.mark.parametrize("seed", ["ftp://example.com/", "http://", "mailto:a@b"])
def test_seeds_must_be_web_addresses(tmp_path: Path, seed: str) -> None:
    with pytest.raises(UsageError, match="not a web address"):
        asyncio.run(Crawler(FAST).run([seed], tmp_path))


def test_no_network(tmp_path: Path) -> None:
    config = replace(FAST, max_host_failures=1)
    with pytest.raises(CrawlError, match=r"no page was fetched: .*dns: .*Check the addresses and the network"):
        asyncio.run(Crawler(config).run(["http://no-such-host.invalid/"], tmp_path))


def test_a_site_of_only_500s(tmp_path: Path) -> None:
    errors = {path: Answer(status=500) for path in ("/", "/robots.txt")}
    with serve(Site(dict(errors))) as site, pytest.raises(CrawlError, match=r"robots.txt: HTTP 500"):
        crawl(site, tmp_path, replace(FAST, max_host_failures=2))
    assert {each.path for each in site.requests} == {"/robots.txt"}, "no page without rules"


def test_a_robots_file_without_end(tmp_path: Path) -> None:
    rules = b"User-agent: *\nDisallow: /private/\n" + b"# filler\n" * 400_000
    with serve(tree(2)) as site:
        site.answers["/robots.txt"] = Answer(rules, headers={"Content-Type": "text/plain"})
        report = crawl(site, tmp_path)
    assert (report.done, report.denied) == (2, 1)


def test_priorities_prefer_templates_with_text(tmp_path: Path) -> None:
    links = [*(f"/thin/{index}" for index in range(15)), *(f"/rich/{index}" for index in range(15))]
    answers = {"/": page(*links)}
    answers |= {f"/thin/{index}": page(text=f"Item {index}") for index in range(15)}
    answers |= {f"/rich/{index}": page(text=f"Report {index}. " + page().body.decode()) for index in range(15)}
    with serve(Site(dict(answers))) as site:
        crawl(site, tmp_path, replace(FAST, max_pages=17))
    kinds = Counter(path.split("/")[1] for path in site.paths())
    assert kinds["rich"] > 2 * kinds["thin"]


@dataclass
class StaticRendered:
    dom: bytes
    screenshot: bytes = b""


class FakeRenderer:
    """Renders pages whose HTML has a script, except one that crashes."""

    def needs_rendering(self, page: Page) -> bool:
        return b"<script" in page.body

    def __init__(self) -> None:
        self.refusals: list[str] = []

    async def render(
        self, url: str, html: bytes | None = None, *, content_type: str = "", refusal: Refusal | None = None
    ) -> StaticRendered:
        assert refusal is not None
        self.refusals += [await refusal(urljoin(url, path)) for path in ("/private/data.json", "/data.json")]
        if url.endswith("/crash"):
            raise OpenAFMError("the browser crashed")
        return StaticRendered(b'<html><body><a href="/found">found</a></body></html>')


def test_rendered_pages_carry_their_dom_and_links(tmp_path: Path) -> None:
    script = "<script>build()</script>"
    answers = {"/": page("/built", "/crash"), "/built": page(head=script), "/crash": page(head=script), "/found": page()}
    renderer = FakeRenderer()
    with serve(Site(dict(answers), robots="User-agent: *\nDisallow: /private")) as site:
        crawl(site, tmp_path, FAST, renderer=renderer)
    rendered = {each.url.removeprefix(site.url): each.rendered for each in pages_of(tmp_path)}
    assert rendered == {"/": False, "/built": True, "/crash": False, "/found": False}
    assert renderer.refusals == ["robots.txt line 2: Disallow: /private", ""] * 2


def test_a_crawl_ends_if_all_pages_wait_for_too_long(tmp_path: Path) -> None:
    answers = {"/": page("/busy"), "/busy": Answer(status=429, headers={"Retry-After": "3600"})}
    with serve(Site(dict(answers))) as site:
        start = time.monotonic()
        report = crawl(site, tmp_path)
    assert time.monotonic() - start < 5
    assert report.waiting == 1
    assert report.next_at is not None
    assert report.next_at - time.time() > 3000
