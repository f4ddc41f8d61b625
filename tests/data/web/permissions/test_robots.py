"""robots.txt: the public conformance set of google/robotstxt, and cases of our own."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from openafm.data.web.permissions.robots import (
    CACHE_SECONDS,
    MAX_BYTES,
    Robots,
    RobotsCache,
    directives,
    escape_pattern,
    is_product_token,
    path_of,
)

SHARED = Path(__file__).parents[5] / "shared" / "data" / "conformance"  # beside the checkout
CONFORMANCE = Path(os.environ.get("OPENAFM_CONFORMANCE", SHARED))


def conformance(name: str) -> Any:
    path = CONFORMANCE / name
    if not path.is_file():
        pytest.skip("set OPENAFM_CONFORMANCE to the folder of robots.json and robots_parser.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_public_conformance_set() -> None:
    cases = conformance("robots.json")
    wrong = [
        case
        for case in cases
        if Robots.parse(case["robots_txt"].encode()).allows(case["user_agent"], case["url"]) != case["allowed"]
    ]
    assert len(cases) == 145
    assert wrong == []


def test_public_conformance_set_of_the_parser() -> None:
    cases = conformance("robots_parser.json")
    for case in cases["valid_user_agent"]:
        assert is_product_token(case["user_agent"]) == case["valid"], case
    for case in cases["path_params_query"]:
        assert path_of(case["url"]) == case["path"], case
    for case in cases["escape_pattern"]:
        assert escape_pattern(case["pattern"]) == case["escaped"], case
    for case in cases["parse_statistics"]:
        encoded = case.get("robots_txt_base64")
        data = base64.b64decode(encoded) if encoded else case["robots_txt"].encode()
        found = list(directives(data))
        if "valid_directives" in case:
            assert sum(bool(directive.kind) for directive in found) == case["valid_directives"], case
        if "unknown_directives" in case:
            assert sum(not directive.kind for directive in found) == case["unknown_directives"], case
        if "last_line_seen" in case:
            assert found[-1].line == case["last_line_seen"], case
        if "sitemap" in case:
            assert Robots.parse(data).sitemaps == (case["sitemap"],), case


RULES = b"""
User-agent: Foo
Crawl-delay: 2.5
Disallow: /a
Allow: /a/b
Disallow: /*.pdf$

User-agent: *
Crawl-delay: 1
Disallow: /
Sitemap: https://example.com/sitemap.xml
"""


@pytest.mark.parametrize(
    ("agent", "path", "allowed"),
    [
        ("foo", "/", True),
        ("Foo", "/a", False),
        ("Foo", "/a/b/c", True),
        ("Foo", "/a/x", False),
        ("Foo", "/x.pdf", False),
        ("Foo", "/x.pdf?page=1", True),
        ("Bar", "/", False),
    ],
)
def test_longest_rule_of_the_named_group_decides(agent: str, path: str, allowed: bool) -> None:
    assert Robots.parse(RULES).allows(agent, f"https://example.com{path}") is allowed


def test_groups_delays_and_sitemaps() -> None:
    robots = Robots.parse(RULES)
    assert robots.crawl_delay("Foo") == 2.5
    assert robots.crawl_delay("Bar") == 1
    assert Robots.parse(b"User-agent: *\nCrawl-delay: nan").crawl_delay("Foo") is None
    assert robots.names("foo")
    assert not robots.names("Bar")
    assert robots.sitemaps == ("https://example.com/sitemap.xml",)


def test_groups_of_one_agent_apply_together() -> None:
    robots = Robots.parse(b"User-agent: a\nDisallow: /x\nUser-agent: b\nDisallow: /\nUser-agent: a\nDisallow: /y")
    assert [robots.allows("a", f"http://e.com/{path}") for path in ("x", "y", "z")] == [False, False, True]


def test_a_decision_names_its_rule() -> None:
    decision = Robots.parse(RULES).decide("Foo", "https://example.com/a/x")
    assert str(decision) == "robots.txt line 4: Disallow: /a"
    assert str(Robots().decide("Foo", "https://example.com/")) == "no rule of robots.txt matches"


@pytest.mark.parametrize("path", ["/%62az", "/b%61z", "/baz"])
@pytest.mark.parametrize("pattern", ["/%62az", "/baz"])
def test_disallow_matches_both_encodings(path: str, pattern: str) -> None:
    assert not Robots.parse(f"User-agent: *\nDisallow: {pattern}".encode()).allows("Foo", f"http://e.com{path}")


def test_disallow_matches_an_url_that_is_not_encoded() -> None:
    assert not Robots.parse("User-agent: *\nDisallow: /ツ".encode()).allows("Foo", "http://e.com/ツ")


def test_wildcards_do_not_backtrack() -> None:
    robots = Robots.parse(b"User-agent: *\nDisallow: /" + b"*a" * 2000 + b"*b$")
    start = time.process_time()
    assert robots.allows("Foo", "http://e.com/" + "a" * 4000)
    assert time.process_time() - start < 1


def test_anchored_wildcard_does_not_match_overlapping_parts() -> None:
    robots = Robots.parse(b"User-agent: *\nDisallow: /ab*ba$")
    assert robots.allows("Foo", "http://e.com/aba")
    assert not robots.allows("Foo", "http://e.com/abba")


def test_size_limit() -> None:
    line = b"Disallow: /late\n"
    early = b"User-agent: *\nDisallow: /early\n"
    robots = Robots.parse(early + b"#" * MAX_BYTES + b"\n" + line)
    assert not robots.allows("Foo", "http://e.com/early")
    assert robots.allows("Foo", "http://e.com/late")


def test_a_line_cut_by_the_size_limit_is_ignored() -> None:
    early = b"User-agent: *\nDisallow: /early\n"
    padding = b"#" * (MAX_BYTES - len(early) - len("\nDisallow: /")) + b"\n"
    assert Robots.parse(early + padding + b"Disallow: /late").allows("Foo", "http://e.com/other")


@pytest.mark.parametrize(
    ("status", "allowed"),
    [(200, False), (404, True), (403, True), (301, True), (429, False), (500, False), (503, False), (0, False)],
)
def test_answers_to_the_request(status: int, allowed: bool) -> None:
    assert Robots.of_response(status, b"User-agent: *\nDisallow: /").allows("Foo", "http://e.com/") is allowed


def test_cache_expires_and_keeps_rules_while_unreachable() -> None:
    cache = RobotsCache(max_origins=2)
    rules, unreachable = Robots.parse(RULES), Robots.of_response(503)
    assert cache.get("a", 0) is None
    assert cache.put("a", rules, 0) is rules
    assert cache.get("a", CACHE_SECONDS - 1) is rules
    assert cache.get("a", CACHE_SECONDS) is None
    assert cache.put("a", unreachable, CACHE_SECONDS) is rules
    assert cache.put("b", unreachable, 0) is unreachable
    assert cache.get("b", 3601) is None
    cache.put("c", rules, 0)
    assert cache.get("a", CACHE_SECONDS) is None, "the oldest origin is dropped"


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"\xef", b":::\n:", b"disallow", b"\x00" * 100, b"User-agent: \xff"])
def test_no_input_is_an_error(data: bytes) -> None:
    assert Robots.parse(data).allows("Foo", "http://e.com/")
