"""What the crawler reads from a page: links, text, language; a quick look, not the extraction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urljoin

from openafm.core.libraries import needed
from openafm.data.web.tags import running_text, tags
from openafm.data.web.urls import canonical_url

MAX_BYTES = 2 << 20
"""Bytes of a page that are inspected; the time is linear in them."""
MAX_LINKS = 2000
MIN_IMAGE_SIDE = 32
"""Images that declare a smaller width or height are icons and counters; they are not fetched."""
MAX_TEXT = 20_000
_SAMPLE = 2000  # characters for the identification of the language; accuracy no longer grows above
_SPACE = re.compile(r"\s+")
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_VECTOR = re.compile(r"\.svgz?$", re.IGNORECASE)
_NOT_FOLLOWED = {"nofollow", "ugc", "sponsored"}
_NO_ADDRESSES = ("#", "javascript:", "mailto:", "tel:", "data:")
_NO_PAGES = re.compile(
    r"\.(?:jpe?g|png|gif|webp|avif|svg|ico|bmp|tiff?|css|js|mjs|json|woff2?|ttf|eot|mp[34]|m4[av]|webm|ogg|wav|avi|mov|zip"
    r"|gz|tgz|bz2|xz|7z|rar|exe|dmg|iso|apk|deb|rpm|pdf|docx?|xlsx?|pptx?|epub|csv|xml|rss|atom)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Links and images are canonical, without repetition, in the order of the page.

    `canonical` is the page's own statement.
    """

    links: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    canonical: str = ""
    title: str = ""
    text: str = ""
    language: str = ""


def inspect_page(
    url: str, headers: Mapping[str, str], body: bytes, *, identify: bool = True, images: bool = False
) -> Inspection:
    """Return links, title, text and language of an HTML page; malformed HTML is read as far as possible.

    `identify` False takes the declared language: loading the identifier costs a second, each page a millisecond. `images`
    also collects the addresses of images.
    """
    with needed("crawling", "resiliparse", "data"):
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    body = body[:MAX_BYTES]
    declared = re.search(r"charset=[\"']?([\w-]+)", headers.get("content-type", ""), re.IGNORECASE)
    encoding = declared[1] if declared else detect_encoding(body[: 1 << 16]) or "utf-8"
    try:
        content = str(bytes_to_str(body, encoding, errors="replace"))
    except LookupError:
        content = body.decode("utf-8", "replace")
    text = running_text(content, MAX_TEXT)
    found = _Statements(base=url)
    for name, values in tags(content, "a", "area", "iframe", "link", "base", "html", *(["img"] if images else [])):
        found.read(name, values)
    title = _TITLE.search(content)
    return Inspection(
        links=tuple(found.links),
        images=tuple(found.images),
        canonical=found.canonical,
        title=_SPACE.sub(" ", unescape(title[1])).strip() if title else "",
        text=text,
        language=identify_language(text if identify else "", found.language or headers.get("content-language", "")),
    )


@dataclass
class _Statements:
    """What the tags of a page state. Links marked nofollow and links to files that are no pages are left out."""

    base: str
    links: dict[str, None] = field(default_factory=dict)
    images: dict[str, None] = field(default_factory=dict)
    canonical: str = ""
    language: str = ""

    def read(self, name: str, values: dict[str, str]) -> None:
        """Read a tag."""
        relation = values.get("rel", "").lower().split()
        if name == "html":
            self.language = values.get("lang", "")
        elif name == "base":
            self.base = _joined(self.base, values.get("href", ""))
        elif name == "img":
            self._read_image(values)
        elif name == "link" and "canonical" in relation:
            self.canonical = canonical_url(values.get("href", ""), self.base)
        elif (name != "link" or "next" in relation) and not _NOT_FOLLOWED & set(relation) and len(self.links) < MAX_LINKS:
            target = values.get("href") or values.get("src") or ""
            if target and not target.startswith(_NO_ADDRESSES):
                url = canonical_url(target, self.base)
                if url and not _NO_PAGES.search(url.partition("?")[0]):
                    self.links[url] = None

    def _read_image(self, values: dict[str, str]) -> None:
        sides = (values[name] for name in ("width", "height") if values.get(name, "").isdecimal())
        if any(int(side[:6]) < MIN_IMAGE_SIDE for side in sides):
            return
        sources = (values.get(name, "").strip() for name in ("src", "data-src"))  # lazy pages have a placeholder in src
        source = next((each for each in sources if each and not each.startswith("data:")), "")
        url = canonical_url(source, self.base) if source else ""
        if url and not _VECTOR.search(url.partition("?")[0]):
            self.images[url] = None


def identify_language(text: str, declared: str = "") -> str:
    """Return the language of a text as a two-letter code; the declared one if the text is short or nothing is installed."""
    default = declared.partition(",")[0].strip().lower()[:2]
    if len(text) < 40:
        return default
    try:
        from py3langid.langid import classify
    except ImportError:
        return default
    return str(classify(text[:_SAMPLE])[0])


def _joined(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError:
        return base
