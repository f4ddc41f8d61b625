"""One request: addresses, headers, limits."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from crawl_site import Answer, Site, page, serve

from openafm.data.web.crawl.fetch import Fetched, Fetcher, FetchFailure, FetchLimits


def fetch(url: str, limits: FetchLimits | None = None, *, private: bool = True, **arguments: str) -> Fetched | FetchFailure:
    async def once() -> Fetched | FetchFailure:
        async with Fetcher("TestBot/1", allow_private_addresses=private) as fetcher:
            return await fetcher.fetch(url, limits or FetchLimits(timeout_s=5.0), **arguments)

    return asyncio.run(once())


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let every name resolve to these addresses; return the names that are asked for."""
    asked: list[str] = []

    async def getaddrinfo(self: object, host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


def test_an_answer() -> None:
    with serve(Site({"/": page()})) as site:
        answer = fetch(f"{site.url}/", etag='"1"', last_modified="Thu, 01 Jan 1970 00:00:00 GMT")
    assert isinstance(answer, Fetched)
    assert (answer.status, answer.ip, answer.http_version) == (200, "127.0.0.1", "1.1")
    sent = site.requests[0].headers
    assert (sent["user-agent"], sent["if-none-match"]) == ("TestBot/1", '"1"')
    assert sent["if-modified-since"] == "Thu, 01 Jan 1970 00:00:00 GMT"


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("8.8.8.8", "10.0.0.1"), ("::ffff:127.0.0.1",), ("169.254.169.254",)])
def test_a_public_name_with_a_private_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    resolve_to(monkeypatch, *addresses)
    answer = fetch("http://public.example/", private=False)
    assert isinstance(answer, FetchFailure)
    assert answer.reason == "private_address"


def test_the_checked_address_is_the_one_that_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second lookup between check and connection could give another address (DNS rebinding)."""
    with serve(Site({"/": page()})) as site:
        asked = resolve_to(monkeypatch, "127.0.0.1")
        answer = fetch(site.url.replace("127.0.0.1", "rebinding.example") + "/")
    assert isinstance(answer, Fetched)
    assert asked == ["rebinding.example"]
    assert site.requests[0].headers["host"].startswith("rebinding.example")


@pytest.mark.parametrize("port", [22, 25, 110])
def test_ports_of_other_services_are_refused(port: int) -> None:
    answer = fetch(f"http://example.com:{port}/", private=False)
    assert isinstance(answer, FetchFailure)
    assert answer.reason == "port"


def test_redirects_are_returned() -> None:
    with serve(Site({"/": Answer(status=302, headers={"Location": "/b"})})) as site:
        answer = fetch(f"{site.url}/")
    assert isinstance(answer, Fetched)
    assert (answer.status, answer.headers["location"]) == (302, "/b")


def test_a_long_file_is_cut_on_request() -> None:
    with serve(Site({"/": Answer(b"x" * 100_000)})) as site:
        answer = fetch(f"{site.url}/", FetchLimits(max_bytes=1000, truncate=True))
    assert isinstance(answer, Fetched)
    assert (len(answer.body), answer.is_truncated) == (1000, True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://[::1]:9/"])
def test_a_closed_port_is_a_failure(url: str) -> None:
    answer = fetch(url)
    assert isinstance(answer, FetchFailure)
    assert answer.reason == "connect"
