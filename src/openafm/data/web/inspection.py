"""What the crawler reads from a page: links, text, language; a quick look, not the extraction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from openafm.data.web.urls import canonical_url
from openafm.data.web.warc import MissingLibraryError

if TYPE_CHECKING:
    from resiliparse.parse.html import DocumentNode

MAX_LINKS = 2000
MAX_TEXT = 20_000
_SAMPLE = 2000  # characters for the identification of the language; accuracy no longer grows above
_SPACE = re.compile(r"\s+")
_NO_PAGES = re.compile(
    r"\.(?:jpe?g|png|gif|webp|avif|svg|ico|bmp|tiff?|css|js|mjs|json|woff2?|ttf|eot|mp[34]|m4[av]|webm|ogg|wav|avi|mov|zip"
    r"|gz|tgz|bz2|xz|7z|rar|exe|dmg|iso|apk|deb|rpm|pdf|docx?|xlsx?|pptx?|epub|csv|xml|rss|atom)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Links are canonical, without repetition, in the order of the page. `canonical` is the page's own statement."""

    links: tuple[str, ...] = ()
    canonical: str = ""
    title: str = ""
    text: str = ""
    language: str = ""


def inspect_page(url: str, headers: Mapping[str, str], body: bytes) -> Inspection:
    """Return links, title, text and language of an HTML page; malformed HTML is read as far as possible."""
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import detect_encoding
        from resiliparse.parse.html import HTMLTree
    except ImportError as error:
        raise MissingLibraryError("crawling needs resiliparse; install it with: pip install 'openafm[data]'") from error
    declared = re.search(r"charset=[\"']?([\w-]+)", headers.get("content-type", ""), re.IGNORECASE)
    encoding = declared[1] if declared else detect_encoding(body[: 1 << 16]) or "utf-8"
    try:
        tree = HTMLTree.parse_from_bytes(body, encoding)
    except (LookupError, ValueError):
        tree = HTMLTree.parse_from_bytes(body, "utf-8")
    document = tree.document
    if document is None:
        return Inspection()
    base = url
    if (element := document.query_selector("base[href]")) is not None:
        base = _joined(url, element.getattr("href") or "")
    canonical = document.query_selector('link[rel="canonical"][href]')
    text = _SPACE.sub(" ", extract_plain_text(tree, main_content=True, links=False, alt_texts=False) or "").strip()[
        :MAX_TEXT
    ]
    root = document.query_selector("html")
    declared_language = (root.getattr("lang") or "") if root is not None else ""
    return Inspection(
        links=_links(document, base),
        canonical=canonical_url(canonical.getattr("href") or "", base) if canonical is not None else "",
        title=_SPACE.sub(" ", tree.title or "").strip(),
        text=text,
        language=identify_language(text, declared_language or headers.get("content-language", "")),
    )


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


def _links(document: DocumentNode, base: str) -> tuple[str, ...]:
    """Return the links of a document except those marked nofollow and those to files that are no pages."""
    found: dict[str, None] = {}
    for element in document.query_selector_all("a[href], area[href], iframe[src], link[rel=next][href]"):
        relation = (element.getattr("rel") or "").lower().split()
        if "nofollow" in relation or "ugc" in relation or "sponsored" in relation:
            continue
        target = element.getattr("href") or element.getattr("src") or ""
        if not target or target.startswith(("#", "javascript:", "mailto:", "tel:", "data:")):
            continue
        url = canonical_url(target, base)
        if url and not _NO_PAGES.search(url.partition("?")[0]):
            found[url] = None
        if len(found) == MAX_LINKS:
            break
    return tuple(found)


def _joined(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError:
        return base
