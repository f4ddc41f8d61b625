"""Decide from the static HTML whether a page needs JavaScript to show its text.

The decision parses the page once and runs no layout, because it is made for each page of a crawl. It favors recall: a page
rendered in vain costs a tenth of a second, a page missed costs its text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from openafm.data.web.documents import Page
from openafm.data.web.warc import MissingLibraryError

if TYPE_CHECKING:
    from resiliparse.parse.html import DocumentNode

MAX_BYTES = 2 << 20
_LITTLE_TEXT = 300  # characters of text outside links and menus; articles have more
_SCRIPT_TYPE = re.compile(r"^(?:|module|(?:text|application)/(?:x-)?(?:java|ecma)script.*)$", re.IGNORECASE)
_MEASURING = re.compile(r"google-?analytics|googletagmanager|gtag|matomo|plausible|doubleclick|hotjar", re.IGNORECASE)
# Code that adds content, unlike code that measures visits or changes classes.
_BUILDS = re.compile(
    r"innerHTML|insertAdjacent|appendChild|replaceChildren|\.append\(|createElement|createRoot|hydrate|\.mount\(|\.html\("
    r"|attachShadow|document\.write|fetch\(|XMLHttpRequest|import\("
)
_MOUNT = "div[id], main[id], section[id], article[id], app-root"
_MOUNT_NAME = re.compile(
    r"^(?:app|root|__next|__nuxt|___gatsby|main|content|page|container|(?:react|vue)-.*|ember.*|svelte)$", re.IGNORECASE
)
_INTERACTIVE = "[role=tab], [class*=load-more], [class*=show-more], [class*=cookie-wall], [class*=consent-wall]"
_NO_TEXT = "script, style, noscript, template, svg, nav, footer, a, button, select"


def needs_rendering(page: Page) -> bool:
    """Return True if scripts probably add a part of the page's text; False for a page that is rendered already.

    Raises:
        MissingLibraryError: resiliparse is not installed.
    """
    if page.rendered or b"<script" not in page.body[:MAX_BYTES].lower():
        return False
    try:
        from resiliparse.parse.html import HTMLTree
    except ImportError as error:
        raise MissingLibraryError("rendering needs resiliparse; install it with: pip install 'openafm[data]'") from error
    document = HTMLTree.parse_from_bytes(page.body[:MAX_BYTES], "utf-8").document
    if document is None:
        return False
    code, has_source = _scripts(document)
    builds = _BUILDS.search(code) is not None
    if not (builds or has_source):
        return False
    if any(
        _is_mount(element.id or "", code)
        for element in document.query_selector_all(_MOUNT)
        if not (element.text or "").strip()
    ):
        return True
    if builds and document.query_selector(_INTERACTIVE) is not None:
        return True
    return _text_length(document) < _LITTLE_TEXT


def _scripts(document: DocumentNode) -> tuple[str, bool]:
    """Return the inline code of a page, and True if it loads code that does more than measure visits."""
    scripts = [each for each in document.query_selector_all("script") if _SCRIPT_TYPE.match(each.getattr("type") or "")]
    sources = [each.getattr("src") or "" for each in scripts]
    code = "\n".join(each.text or "" for each, source in zip(scripts, sources, strict=True) if not source)
    return code, any(source and not _MEASURING.search(source) for source in sources)


def _is_mount(name: str, code: str) -> bool:
    """Return True if an empty element is where an application puts its content: by its usual name, or by use in code."""
    return _MOUNT_NAME.match(name) is not None or (
        bool(name) and re.search(rf"""["'#]{re.escape(name)}["']""", code) is not None
    )


def _text_length(document: DocumentNode) -> int:
    """Return the characters of text outside scripts, links and menus. Changes the document."""
    body = document.query_selector("body")
    if body is None:
        return 0
    for element in body.query_selector_all(_NO_TEXT):
        if element.parent is not None:  # not removed with an element around it
            element.decompose()
    return len(" ".join((body.text or "").split()))
