"""Read sitemaps: XML (sitemaps.org), sitemap indexes, RSS, Atom and plain text, each also with gzip."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

MAX_BYTES = 50 << 20
MAX_URLS = 50_000
"""Limits of sitemaps.org; the rest of a larger sitemap is ignored."""
_BLOCK = 1 << 16


@dataclass(frozen=True)
class SitemapEntry:
    """A URL of a sitemap. `is_sitemap` is True if it is a sitemap itself; `modified` is the date as written."""

    url: str
    modified: str = ""
    is_sitemap: bool = False


def read_sitemap(body: bytes) -> list[SitemapEntry]:
    """Return the entries of a sitemap; of a malformed one those before the error. Documents with a DOCTYPE have none."""
    text = _unzipped(body)
    start = text[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start.startswith(b"<"):
        return _plain(text)
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # entities could expand without bound
        return []
    entries: list[SitemapEntry] = []
    for entry in _xml(text):
        entries.append(entry)
        if len(entries) == MAX_URLS:
            break
    return entries


def _unzipped(body: bytes) -> bytes:
    if body[:2] != b"\x1f\x8b":
        return body[:MAX_BYTES]
    try:
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(body, MAX_BYTES)
    except zlib.error:
        return b""


def _plain(text: bytes) -> list[SitemapEntry]:
    lines = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
    return [SitemapEntry(line) for line in lines if line.startswith(("http://", "https://"))][:MAX_URLS]


def _xml(text: bytes) -> Iterator[SitemapEntry]:
    parser: XMLPullParser[Element] = XMLPullParser(events=("end",))
    for offset in range(0, len(text), _BLOCK):
        try:
            parser.feed(text[offset : offset + _BLOCK])
        except ParseError:
            yield from _entries(parser)
            return
        yield from _entries(parser)


def _entries(parser: XMLPullParser[Element]) -> Iterator[SitemapEntry]:
    events = parser.read_events()
    while True:
        try:
            event = next(events, None)
        except ParseError:  # XMLPullParser reports errors of `feed` here
            return
        if event is None:
            return
        element = cast(tuple[str, Element], event)[1]
        name = _name(element)
        if name in ("url", "sitemap", "item", "entry"):
            values = {_name(child): (child.text or child.get("href") or "").strip() for child in element}
            url = values.get("loc") or values.get("link") or ""
            modified = values.get("lastmod") or values.get("pubDate") or values.get("updated") or ""
            if url:
                yield SitemapEntry(url, modified, is_sitemap=name == "sitemap")
            element.clear()


def _name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]
