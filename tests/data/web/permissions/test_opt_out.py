"""Opt-outs: each source alone, and what overrules what."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from openafm.data.web.permissions.opt_out import (
    ExceptionsError,
    PublisherException,
    crawl_agent,
    crawl_denial,
    follows_links,
    image_opt_out,
    join_headers,
    meta_elements,
    read_exceptions,
    training_opt_out,
)
from openafm.data.web.permissions.robots import Robots

URL = "https://www.example.com/news/1"


def meta(name: str, content: str) -> bytes:
    return f'<html><head><meta content="{content}" name="{name}"></head></html>'.encode()


def test_a_page_without_opt_out_may_be_used() -> None:
    robots = Robots.parse(b"User-agent: *\nDisallow: /private")
    page = meta("robots", "index, follow, max-snippet:-1")
    assert training_opt_out(URL, {"x-robots-tag": "all"}, page, robots=robots) == ""


def test_the_training_agent_of_robots_decides_training_only() -> None:
    robots = Robots.parse(b"User-agent: Applebot-Extended\nDisallow: /news\n\nUser-agent: *\nAllow: /")
    assert training_opt_out(URL, {}, robots=robots) == "Applebot-Extended: robots.txt line 2: Disallow: /news"
    assert training_opt_out("https://www.example.com/other", {}, robots=robots) == ""
    assert robots.allows("Applebot", URL)


def test_the_group_of_all_agents_does_not_decide_training() -> None:
    assert training_opt_out(URL, {}, robots=Robots.parse(b"User-agent: *\nDisallow: /")) == ""


def test_content_signal() -> None:
    robots = Robots.parse(b"User-agent: *\nContent-Signal: search=yes, ai-train=no\nAllow: /")
    assert training_opt_out(URL, {}, robots=robots) == "robots.txt: Content-Signal: ai-train=no"


@pytest.mark.parametrize("content", ["noai", "NoIndex, follow", "none", "nosnippet", "max-snippet: 0", "x, noarchive"])
def test_meta_and_header_directives(content: str) -> None:
    assert training_opt_out(URL, {}, meta("robots", content)).startswith("meta robots: ")
    assert training_opt_out(URL, {}, meta("Applebot", content)).startswith("meta robots: ")
    assert training_opt_out(URL, {}, meta("otherbot", content)) == ""
    assert training_opt_out(URL, {"x-robots-tag": content}).startswith("X-Robots-Tag: ")


@pytest.mark.parametrize(
    ("value", "opted_out"),
    [
        ("otherbot: noindex, nofollow", False),
        ("applebot: noindex", True),
        ("otherbot: noindex, applebot: noarchive", True),
        ("otherbot: noai", True),
        ("otherbot: nofollow\nnoindex", True),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST", False),
    ],
)
def test_header_for_one_agent(value: str, opted_out: bool) -> None:
    assert bool(training_opt_out(URL, {"x-robots-tag": value})) is opted_out


def test_repeated_headers_stay_apart() -> None:
    headers = join_headers([("X-Robots-Tag", "otherbot: nofollow"), ("X-Robots-Tag", "noindex"), ("A", "1"), ("a", "2")])
    assert headers == {"x-robots-tag": "otherbot: nofollow\nnoindex", "a": "1, 2"}


def test_tdm_reservation() -> None:
    assert training_opt_out(URL, {"tdm-reservation": "1"})
    assert not training_opt_out(URL, {"tdm-reservation": "0"})
    assert training_opt_out(URL, {}, meta("tdm-reservation", "1"))
    file = json.dumps([{"location": "/news/free/*", "tdm-reservation": 0}, {"location": "/news/*", "tdm-reservation": 1}])
    assert training_opt_out(URL, {}, tdm_file=file.encode()) == "tdmrep.json: /news/*"
    assert not training_opt_out("https://www.example.com/news/free/1", {}, tdm_file=file.encode())
    assert not training_opt_out("https://www.example.com/", {}, tdm_file=file.encode())
    assert not training_opt_out(URL, {}, tdm_file=b"[" * 100_000)


def test_images_have_their_own_opt_out() -> None:
    page = meta("robots", "noimageai")
    assert not training_opt_out(URL, {}, page)
    assert image_opt_out({}, page) == "meta robots: noimageai"
    assert image_opt_out({"x-robots-tag": "noai"}) == "X-Robots-Tag: noai"
    assert image_opt_out({}, b"") == ""


def test_nofollow() -> None:
    assert follows_links({}, meta("robots", "noindex"))
    assert not follows_links({}, meta("robots", "nofollow"))
    assert not follows_links({"x-robots-tag": "none"})


@pytest.mark.parametrize(
    "html",
    [
        b"<META NAME=robots CONTENT=noai>",
        b"<meta\n name = 'robots' content='&#110;oai' />",
        '<meta name="robots" content="noai">'.encode("utf-16"),
        b'<meta charset=utf-8><meta name="description" content="a > b"><meta name="robots" content="noai">',
    ],
)
def test_forms_of_meta_elements(html: bytes) -> None:
    assert training_opt_out(URL, {}, html) == "meta robots: noai"


@pytest.mark.parametrize("unit", [b"<meta ", b'<meta "', b"<meta a=", b"<meta a='"])
def test_malformed_meta_elements_take_linear_time(unit: bytes) -> None:
    start = time.process_time()
    meta_elements(unit * 100_000)
    assert time.process_time() - start < 1


def test_fallback_agents() -> None:
    google = Robots.parse(b"User-agent: Googlebot\nDisallow: /g\nUser-agent: *\nDisallow: /")
    apple = Robots.parse(b"User-agent: Googlebot\nDisallow: /g\nUser-agent: Applebot\nDisallow: /a")
    own = Robots.parse(b"User-agent: Applebot\nDisallow: /a\nUser-agent: OpenAFMBot\nDisallow: /o")
    assert [crawl_agent(robots) for robots in (google, apple, own, Robots())] == [
        "Googlebot",
        "Applebot",
        "OpenAFMBot",
        "OpenAFMBot",
    ]


def test_exceptions_overrule_pages(tmp_path: Path) -> None:
    path = tmp_path / "exceptions.toml"
    path.write_text(
        '[[publisher]]\ndomain = "example.com"\ntrain = true\nreason = "license of 2026"\n'
        '[[publisher]]\ndomain = "example.com"\npath = "/private/*"\ntrain = false\n'
        '[[publisher]]\ndomain = "other.org"\ncrawl = false\nreason = "asked by mail"\n'
    )
    exceptions = read_exceptions(path)
    assert training_opt_out(URL, {"x-robots-tag": "noai"}, exceptions=exceptions) == ""
    denied = "exception for example.com: not for training"
    assert training_opt_out("https://example.com/private/1", {}, exceptions=exceptions) == denied
    assert crawl_denial("https://sub.other.org/x", exceptions) == "exception for other.org: asked by mail"
    assert crawl_denial("https://another.org/x", exceptions) == ""
    assert not PublisherException(domain="ample.com").applies(URL)


@pytest.mark.parametrize(
    "text", ["", "publisher = 1", '[[publisher]]\nx = "y"', '[[publisher]]\ndomain = "a"\ncrawl = "no"']
)
def test_malformed_exceptions(tmp_path: Path, text: str) -> None:
    path = tmp_path / "exceptions.toml"
    path.write_text(text)
    with pytest.raises(ExceptionsError, match=r"is not a file of exceptions|crawl true or false"):
        read_exceptions(path)
