"""Sitemaps, the inspection of pages, and priorities."""

from __future__ import annotations

import gzip
import time

import pytest

from openafm.core.config import ConfigError
from openafm.data.web.crawl.fetch import retry_after_seconds
from openafm.data.web.crawl.inspection import inspect_page
from openafm.data.web.crawl.priority import PriorityConfig
from openafm.data.web.crawl.sitemaps import SitemapEntry, read_sitemap
from openafm.data.web.tags import tags

MAP = b"""\xef\xbb\xbf<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
<url><loc> http://e.com/a </loc><lastmod>2026-01-01</lastmod></url><url><loc>http://e.com/b</loc></url></urlset>"""
ENTRIES = [SitemapEntry("http://e.com/a", "2026-01-01"), SitemapEntry("http://e.com/b")]


def test_forms_of_sitemaps() -> None:
    assert read_sitemap(MAP) == ENTRIES
    assert read_sitemap(gzip.compress(MAP)) == ENTRIES
    assert read_sitemap(b"http://e.com/a\r\n\nnot a URL\n") == [SitemapEntry("http://e.com/a")]
    index = b"<sitemapindex><sitemap><loc>http://e.com/m.xml</loc></sitemap></sitemapindex>"
    assert read_sitemap(index) == [SitemapEntry("http://e.com/m.xml", is_sitemap=True)]
    feed = b"<rss><channel><item><link>http://e.com/1</link><pubDate>x</pubDate></item></channel></rss>"
    assert read_sitemap(feed) == [SitemapEntry("http://e.com/1", "x")]
    atom = b'<feed xmlns="http://www.w3.org/2005/Atom"><entry><link href="http://e.com/1"/></entry></feed>'
    assert read_sitemap(atom) == [SitemapEntry("http://e.com/1")]


@pytest.mark.parametrize("body", [b"", b"<", b"\x1f\x8bxx", b"<!DOCTYPE x [<!ENTITY a 'b'>]><urlset/>", b"\xff\xfe"])
def test_malformed_sitemaps_have_no_entries(body: bytes) -> None:
    assert read_sitemap(body) == []


def test_entries_before_an_error_are_kept() -> None:
    assert read_sitemap(MAP[:-9]) == ENTRIES
    assert read_sitemap(MAP.replace(b"</urlset>", b"<&>")) == ENTRIES


HTML = """<html lang="fr"><head><title> A
 title</title><base href="/base/"><link rel="canonical" href="/real"></head><body>
<main><p>{}</p></main><a href="one.html#top">1</a><a href="one.html">1 again</a><a rel="nofollow" href="two">2</a>
<a href="photo.JPG">3</a><a href="mailto:x@y.z">4</a><a href="http://[bad">5</a></body></html>"""


def test_inspection() -> None:
    german = "Der Hafen der alten Stadt hat eine lange Mauer aus grauem Stein. " * 5
    found = inspect_page("http://e.com/x", {"content-type": "text/html"}, HTML.format(german).encode())
    assert found.links == ("http://e.com/base/one.html",)
    assert found.canonical == "http://e.com/real"
    assert found.title == "A title"
    assert "grauem Stein" in found.text
    assert found.language == "de", "identified, not declared"


def test_links_in_comments_and_scripts_are_not_links() -> None:
    html = b"<!-- <a href=/a> --><SCRIPT>'<a href=/b>'</SCRIPT><a href=/c><template><a href=/d></template><!-- <a href=/e>"
    assert inspect_page("http://e.com/", {}, html, identify=False).links == ("http://e.com/c",)


@pytest.mark.parametrize("unit", ["<!--", "<script>", "<a ", "<a href='", "<a href=x ", "</script", "<title"])
def test_malformed_tags_take_linear_time(unit: str) -> None:
    start = time.process_time()
    list(tags(unit * 50_000, "a"))
    assert time.process_time() - start < 3


def test_charsets() -> None:
    body = HTML.format("Größe " * 50)
    for headers, data in (
        ({"content-type": "text/html; charset=iso-8859-1"}, body.encode("latin-1")),
        ({"content-type": "text/html; charset=unknown-9"}, body.encode()),
        ({}, body.encode("utf-16")),
    ):
        assert "Größe" in inspect_page("http://e.com/", headers, data, identify=False).text


@pytest.mark.parametrize("body", [b"", b"\x00" * 100, b"<div>" * 5000, b"<a href=" * 1000])
def test_malformed_pages_are_inspected(body: bytes) -> None:
    assert inspect_page("http://e.com/", {}, body, identify=False).links in ((), ("http://e.com/%3Ca",))


def test_templates_with_reward_score_higher() -> None:
    priority = PriorityConfig(exploration=0.0).build()
    for _ in range(5):
        priority.learn("e.com", "e.com/news/N", "en", "", reward=0.9)
        priority.learn("e.com", "e.com/item/N", "en", "", reward=0.1)
    news, item = (priority.score(f"http://e.com/{kind}/9", "e.com", 0).total for kind in ("news", "item"))
    assert news > item + 0.5


def test_unexplored_templates_score_higher_than_explored_ones_of_the_same_reward() -> None:
    priority = PriorityConfig().build()
    for _ in range(50):
        priority.learn("e.com", "e.com/a/N", "en", "", reward=0.5)
    explored, new = (priority.score(f"http://e.com/{kind}/9", "e.com", 0).total for kind in ("a", "b"))
    assert new > explored


def test_domains_of_a_lacking_language_score_higher() -> None:
    priority = PriorityConfig(languages={"de": 0.5, "en": 0.5}).build()
    for _ in range(20):
        priority.learn("english.com", "english.com/N", "en", "", reward=0.5)
    priority.learn("deutsch.de", "deutsch.de/N", "de", "", reward=0.5)
    priority.learn("russian.ru", "russian.ru/N", "ru", "", pages=20, reward=10.0)
    scores = {
        domain: priority.score(f"http://{domain}/x", domain, 0).parts["language"]
        for domain in ("english.com", "deutsch.de", "russian.ru")
    }
    assert scores["deutsch.de"] > scores["english.com"] > scores["russian.ru"]


def test_domains_of_rare_topics_score_higher() -> None:
    priority = PriorityConfig().build()
    for _ in range(9):
        priority.learn("sport.com", "t", "en", "goals match team", reward=0.5)
    priority.learn("geology.com", "t", "en", "basalt granite", reward=0.5)
    rare, common = (priority.score(f"http://{d}/x", d, 0).parts["topic"] for d in ("geology.com", "sport.com"))
    assert rare == pytest.approx(0.45)
    assert common == pytest.approx(0.05)


def test_similar_texts_have_one_topic() -> None:
    priority = PriorityConfig(max_topics=2).build()
    sea = "harbor ships anchor captain sailing harbor ocean waves lighthouse"
    first = priority.topic(sea)
    priority.learn("e.com", "t", "en", first)
    assert priority.topic(sea + " harbor storm") == first
    assert priority.topic("granite basalt quartz mineral crystal geology volcano") != first
    assert priority.topic("a b c") == ""


def test_rewards() -> None:
    priority = PriorityConfig(languages={"en": 1.0}).build()
    assert priority.reward("x" * 4000, "en", is_duplicate=False) == 1.0
    assert priority.reward("x" * 4000, "ru", is_duplicate=False) == 0.1
    assert priority.reward("x" * 4000, "en", is_duplicate=True) == 0.0


def test_a_score_is_explained() -> None:
    text = str(PriorityConfig().build().score("http://e.com/2026/05/a-long-title-here", "e.com", 2))
    assert text.startswith("1.")
    assert [name for name in ("pattern", "exploration", "language", "topic", "depth") if name in text] == [
        "pattern",
        "exploration",
        "language",
        "topic",
        "depth",
    ]


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        PriorityConfig(languages={"en": 0.0})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 50),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
        ("soon", 0),
        ("9" * 9, 86400),
    ],
)
def test_retry_after(value: str, seconds: float) -> None:
    assert retry_after_seconds({"retry-after": value}, now=10.0) == seconds
