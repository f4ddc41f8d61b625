"""Crawls with images: which are fetched, under whose rules, and what the WARC files hold of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from crawl_site import TEXT, Answer, Site, page, serve

from openafm.data.web.crawl.config import CrawlConfig
from openafm.data.web.crawl.crawler import FRONTIER, Crawler
from openafm.data.web.crawl.report import CrawlReport
from openafm.data.web.documents import Page
from openafm.data.web.frontier.frontier import Frontier
from openafm.data.web.warc import warc_files
from openafm.data.web.warc_reader import read_pages

CONFIG = CrawlConfig(delay_s=0.0, allow_private_addresses=True, tdm_file=False, timeout_s=5.0, max_wait_s=5.0, images=True)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(200)


def crawl(site: Site, folder: Path, config: CrawlConfig = CONFIG) -> CrawlReport:
    return asyncio.run(Crawler(config).run([f"{site.url}/"], folder))


def with_images(*tags: str, head: str = "", links: tuple[str, ...] = ()) -> Answer:
    return page(*links, text=TEXT * 5 + "".join(f"<img {tag}>" for tag in tags), head=head)


def png(**headers: str) -> Answer:
    return Answer(PNG, headers={"Content-Type": "image/png", **headers})


def images_of(folder: Path) -> dict[str, Page]:
    pages = [each for path in warc_files(folder) for each in read_pages(path) if isinstance(each, Page)]
    return {each.url.partition("//")[2].partition("/")[2]: each for each in pages if "html" not in each.content_type}


def test_images_are_off_by_default(tmp_path: Path) -> None:
    with serve(Site({"/": with_images('src="/a.png"'), "/a.png": png()})) as site:
        report = crawl(site, tmp_path, replace(CONFIG, images=False))
    assert site.paths() == ["/"]
    assert report.images == 0


def test_images_are_stored_beside_their_pages(tmp_path: Path) -> None:
    tags = (
        'src="/a.png"',
        'src="data:image/gif;base64,R0" data-src="lazy.png"',
        'src="/icon.png" width="16"',
        'src="x.svg"',
    )
    answers = {"/": with_images(*tags, 'src="/a.png"'), "/a.png": png(), "/lazy.png": png(), "/icon.png": png()}
    with serve(Site(dict(answers))) as site:
        report = crawl(site, tmp_path)
    assert sorted(site.paths()) == ["/", "/a.png", "/lazy.png"]
    assert (report.done, report.images, report.failed) == (1, 2, 0)
    assert images_of(tmp_path)["a.png"].body == PNG
    assert "image/png" in site.requests[-1].headers["accept"]


def test_images_of_another_host_are_fetched_under_its_robots(tmp_path: Path) -> None:
    answers = {"/open.png": png(), "/closed/b.png": png(), "/page": page("/more")}
    with serve(Site(dict(answers), robots="User-agent: *\nDisallow: /closed/\nSitemap: /sitemap.xml\n")) as other:
        tags = (f'src="{other.url}/open.png"', f'src="{other.url}/closed/b.png"')
        with serve(Site({"/": with_images(*tags)})) as site:
            report = crawl(site, tmp_path, replace(CONFIG, scope="host"))
    assert other.paths() == ["/open.png"]
    assert report.reasons == {"denied: robots.txt line 2: Disallow: /closed/": 1}


def test_the_delay_holds_for_images(tmp_path: Path) -> None:
    tags = [f'src="/{index}.png"' for index in range(3)]
    answers = {"/": with_images(*tags)} | {f"/{index}.png": png() for index in range(3)}
    with serve(Site(dict(answers))) as site:
        crawl(site, tmp_path, replace(CONFIG, delay_s=0.15))
    assert len(site.paths()) == 4
    assert site.violations(0.15) == []


@pytest.mark.parametrize(
    ("head", "headers"),
    [
        ('<meta name="robots" content="noimageai">', {}),
        ('<meta name="robots" content="noai">', {}),
        ("", {"X-Robots-Tag": "noimageindex"}),
    ],
)
def test_images_of_pages_that_opted_out_are_not_fetched(tmp_path: Path, head: str, headers: dict[str, str]) -> None:
    answer = with_images('src="/a.png"', head=head)
    answer.headers |= headers
    with serve(Site({"/": answer, "/a.png": png()})) as site:
        crawl(site, tmp_path)
    assert site.paths() == ["/"]
    with Frontier(tmp_path / FRONTIER) as frontier:
        assert frontier.counters()["images_not_fetched"] == 1


def test_the_opt_out_of_an_image_is_stored_with_it(tmp_path: Path) -> None:
    answers = {
        "/": with_images('src="/a.png"', 'src="/b.png"'),
        "/a.png": png(**{"X-Robots-Tag": "noimageai"}),
        "/b.png": png(),
    }
    with serve(Site(dict(answers))) as site:
        crawl(site, tmp_path)
    assert {name: each.opt_out for name, each in images_of(tmp_path).items()} == {
        "a.png": "X-Robots-Tag: noimageai",
        "b.png": "",
    }


def test_limits_of_images(tmp_path: Path) -> None:
    tags = ('src="/large.png"', 'src="/text.png"', 'src="/fine.png"', 'src="/fourth.png"')
    answers = {"/": with_images(*tags), "/large.png": Answer(bytes(5000), headers={"Content-Type": "image/png"})}
    answers |= {"/text.png": page(), "/fine.png": png(), "/fourth.png": png()}
    with serve(Site(dict(answers))) as site:
        report = crawl(site, tmp_path, replace(CONFIG, max_image_bytes=1000, max_images_per_page=3))
    assert set(images_of(tmp_path)) == {"fine.png"}
    assert "/fourth.png" not in site.paths()
    assert sorted(report.reasons) == ["failed: content_type: text/html", "failed: too_large: 5,000 bytes, more than 1,000"]


def test_redirects_of_images_are_stored(tmp_path: Path) -> None:
    moved = Answer(status=302, headers={"Location": "/target.png"})
    with serve(Site({"/": with_images('src="/a.png"'), "/a.png": moved, "/target.png": png()})) as site:
        report = crawl(site, tmp_path)
    found = images_of(tmp_path)
    assert (found["a.png"].status, found["a.png"].headers["location"]) == (302, "/target.png")
    assert found["target.png"].body == PNG
    assert report.images == 1


def test_images_do_not_count_as_pages_and_come_before_the_end(tmp_path: Path) -> None:
    answers = {"/": with_images('src="/0.png"', 'src="/1.png"', links=("/a", "/b")), "/a": with_images('src="/2.png"')}
    answers |= {"/b": page()} | {f"/{index}.png": png() for index in range(3)}
    with serve(Site(dict(answers))) as site:
        report = crawl(site, tmp_path, replace(CONFIG, max_pages=1))
        assert sorted(site.paths()) == ["/", "/0.png", "/1.png"]
        assert (report.done, report.images, report.waiting) == (1, 2, 2)
        assert crawl(site, tmp_path).images == 3


def test_an_image_that_was_not_noted_is_recovered(tmp_path: Path) -> None:
    with serve(Site({"/": with_images('src="/a.png"'), "/a.png": png()})) as site:
        crawl(site, tmp_path)
        with Frontier(tmp_path / FRONTIER) as frontier:
            place = frontier.page(f"{site.url}/a.png")
            assert place is not None
            name, start = place["warc"].split(":")
            frontier._database.execute("UPDATE pages SET state = 'active' WHERE kind = 'image'")
            frontier._database.execute("UPDATE counters SET value = 0 WHERE name = 'images'")
            frontier.set_warc_length(name, int(start))
        report = crawl(site, tmp_path)
    assert site.paths().count("/a.png") == 1
    assert report.images == 1


def test_a_crawl_of_an_older_config_is_continued(tmp_path: Path) -> None:
    with serve(Site({"/": page()})) as site:
        crawl(site, tmp_path, replace(CONFIG, images=False))
        with Frontier(tmp_path / FRONTIER) as frontier:
            stored = json.loads(frontier.fact("config") or "")
            del stored["images"], stored["max_image_bytes"]
            frontier.set_fact("config", json.dumps(stored))
        assert crawl(site, tmp_path, replace(CONFIG, images=False)).done == 1
