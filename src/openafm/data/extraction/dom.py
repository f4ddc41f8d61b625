"""Decode and parse the payload of a page, with limits on size and time. No bytes raise an exception."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

from openafm.core.libraries import needed
from openafm.data.web.documents import Dropped, Page

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_HTML_TYPES = (
    "",
    "text/html",
    "application/xhtml+xml",
    "application/octet-stream",
    "text/plain",
    "application/xml",
    "text/xml",
)
_BINARY = (
    b"%PDF",
    b"PK\x03\x04",
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"\x1f\x8b",
    b"RIFF",
    b"\x00\x00\x00",
    b"BM",
    b"OggS",
    b"ID3",
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_TAG = re.compile(rb"<\s*[a-zA-Z!][^<>]{0,2000}>")
_SNIFF_BYTES = 65536
_FORMAT = re.compile(rb"<(?:b|big|code|em|font|i|s|small|strike|strong|tt|u)[ \t\r\n\f/]", re.IGNORECASE)
_NUM_FORMATS = 12
_FEW_TAGS, _MANY_TAGS, _MAX_NODES = 2500, 10_000, 1_000_000


def check_payload(page: Page, max_bytes: int) -> Dropped | None:
    """Return why a page cannot be extracted, judged by its status, type, size and first bytes; None if it can."""
    if not 200 <= page.status < 300:
        return Dropped(reason="http_status", detail=f"status {page.status}", url=page.url)
    media_type = page.content_type.split(";")[0].strip().lower()
    if media_type not in _HTML_TYPES:
        return Dropped(reason="not_html", detail=f"content type {media_type[:80]}", url=page.url)
    if len(page.body) > max_bytes:
        return Dropped(reason="too_large", detail=f"{len(page.body)} bytes; the limit is {max_bytes}", url=page.url)
    if not page.body.strip():
        return Dropped(reason="empty", detail="no bytes except white space", url=page.url)
    if page.body.startswith(_BINARY) or not _looks_like_markup(page.body):
        return Dropped(reason="not_html", detail="the payload has no HTML tags at its start", url=page.url)
    return None


def decode(body: bytes, content_type: str = "") -> str:
    """Return the text of a payload. The order: byte order mark, valid UTF-8, the HTTP charset, detection from the content.

    Invalid bytes become U+FFFD.
    """
    if not body.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return body.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError:
            pass
    with needed("extraction", "resiliparse", "data"):
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    declared = _CHARSET.search(content_type)
    encoding = _python_codec(declared[1]) if declared else ""
    encoding = encoding or _python_codec(detect_encoding(body) or "")
    if encoding in ("", "utf-8", "ascii"):
        return body.decode("utf-8", "replace")
    text: str = bytes_to_str(body, encoding)
    return text


def to_utf8(body: bytes, content_type: str = "") -> bytes:
    """Return a payload in UTF-8: itself if it is valid, otherwise the text that `decode` returns."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return decode(body, content_type).encode("utf-8", "replace")
    return body.removeprefix(codecs.BOM_UTF8)


def parse(html: bytes) -> LexborNode | None:
    """Return the root of the DOM of a page in UTF-8, or None if it has no element.

    Lexbor builds the tree: with a visit of each node, it takes half of libxml2's time (docs/benchmarks.md). The algorithm of
    the HTML standard is quadratic in the depth of nesting and in formatting elements without an end. libxml2 is linear and
    bounds the depth, so it rewrites pages that could take long.
    """
    with needed("extraction", "selectolax", "data"):
        from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, SelectolaxError
    if _may_be_quadratic(html):
        html = _rewritten(html)
    try:
        return LexborHTMLParser(html, options=LexborDocumentOptions.WO_EVENTS, scripting=True).root
    except SelectolaxError:
        return None


def _may_be_quadratic(html: bytes) -> bool:
    """True if the tree could have many more nodes than the page has tags, or be so deep that its construction is slow.

    The standard repeats the open formatting elements (three of each equal kind) in each later block.
    """
    import numpy as np

    num_tags = int(np.count_nonzero(np.frombuffer(html, np.uint8) == ord("<")))  # a third of the time of `bytes.count`
    if num_tags <= _FEW_TAGS:
        return False
    return num_tags > _MANY_TAGS or num_tags * (3 * _NUM_FORMATS + len(_FORMAT.findall(html))) > _MAX_NODES


def _rewritten(html: bytes) -> bytes:
    """The same page with balanced tags and bounded nesting."""
    with needed("extraction", "lxml", "data"):
        from lxml import etree
    parser = etree.HTMLParser(encoding="utf-8", recover=True, remove_comments=True, remove_pis=True, huge_tree=False)
    try:
        root: Any = etree.fromstring(html.replace(b"\x00", b""), parser)
    except (etree.XMLSyntaxError, etree.ParserError, ValueError):
        return b""
    return b"" if root is None else str(etree.tostring(root, method="html", encoding="unicode")).encode("utf-8", "replace")


def _looks_like_markup(body: bytes) -> bool:
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        body = body[:_SNIFF_BYTES].replace(b"\x00", b"")
    return _TAG.search(body, 0, _SNIFF_BYTES) is not None


def _python_codec(name: str) -> str:
    """Python's name of a codec of text, or an empty string."""
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        return ""
    return codec.name if codec._is_text_encoding else ""
