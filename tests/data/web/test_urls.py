"""Canonical URLs, traps and address checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.data.web.urls import (
    canonical_url,
    domain_of,
    host_of,
    is_public_address,
    origin_of,
    template_of,
    trap_reason,
)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("HTTP://Example.com:80/a/../b/./c?b=2&a=1#x", "http://example.com/b/c?a=1&b=2"),
        ("https://example.com:443", "https://example.com/"),
        ("http://example.com:8080/", "http://example.com:8080/"),
        ("http://bücher.de/ü?q=ü", "http://xn--bcher-kva.de/%C3%BC?q=%C3%BC"),
        ("http://e.com/?utm_source=x&PHPSESSID=1&q=2", "http://e.com/?q=2"),
        ("http://e.com/a;jsessionid=12ab?x=1", "http://e.com/a?x=1"),
        ("http://e.com/%62az%2F", "http://e.com/baz%2F"),
        ("http://[::1]/x", "http://[::1]/x"),
        ("http://user:password@e.com/", ""),
        ("http://e.com:99999/", ""),
        ("ftp://e.com/", ""),
        ("javascript:x", ""),
        ("http://", ""),
    ],
)
def test_canonical_form(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical


def test_links_are_resolved() -> None:
    assert canonical_url("../c?x#y", "http://e.com/a/b/") == "http://e.com/a/c?x="
    assert canonical_url("//o.com/x", "https://e.com/") == "https://o.com/x"
    assert canonical_url("mailto:a@b.com", "https://e.com/") == ""


@given(st.text(max_size=60))
def test_canonical_form_is_stable_for_any_text(text: str) -> None:
    once = canonical_url(text, "http://example.com/folder/")
    assert canonical_url(once) == once


def test_parts() -> None:
    url = "https://www.example.com:8080/a"
    assert (origin_of(url), host_of(url), domain_of(url)) == (
        "https://www.example.com:8080",
        "www.example.com:8080",
        "example.com",
    )


def test_templates_join_pages_of_one_program() -> None:
    pages = [f"http://e.com/cal/{year}/page-{year % 7}?month={year % 12}&q=x" for year in range(2000, 2020)]
    assert {template_of(page) for page in pages} == {"e.com/cal/N/page-N?month&q"}
    assert template_of("http://e.com/item/3f2a9c81d7e4") == "e.com/item/N"
    assert template_of("http://e.com/about") == "e.com/about"


@pytest.mark.parametrize(
    "url",
    [
        "http://e.com/" + "a" * 2000,
        "http://e.com/" + "/".join("abcdefghijklmnopqr"),
        "http://e.com/a/b/a/b/a/b/a/b",
        "http://e.com/?" + "&".join(f"p{index}=1" for index in range(9)),
        "http://e.com/?a=1&a=2&a=3&a=4",
        "http://e.com/calendar/2093/07/",
        "http://e.com/?year=1066&month=10",
        "http://e.com/list?date=2093-01-02",
    ],
)
def test_traps(url: str) -> None:
    assert trap_reason(url, latest_year=2027)


@pytest.mark.parametrize(
    "url",
    [
        "http://e.com/",
        "http://e.com/2024/07/article-about-1066",
        "http://e.com/calendar/2024/07/",
        "http://e.com/history/1848-03/revolution",
        "http://e.com/search?q=x&page=2&sort=date",
        "http://e.com/?year=2024",
    ],
)
def test_ordinary_pages_are_no_traps(url: str) -> None:
    assert trap_reason(url, latest_year=2027) == ""


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1"),
        *("::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::", "example.com", ""),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public_address(address)
