"""Decide from the static HTML whether a page needs JavaScript to show its text.

The decision scans the tags once, in linear time, because it is made for each page of a crawl; a DOM takes minutes for a page
of nested tags. It favors recall: a page rendered in vain costs a tenth of a second, a page missed costs its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from openafm.data.web.documents import Page
from openafm.data.web.tags import attributes

MAX_BYTES = 512 << 10
_LITTLE_TEXT = 300  # characters of text outside links and menus; articles have more
_SCRIPT_TYPE = re.compile(r"^(?:|module|(?:text|application)/(?:x-)?(?:java|ecma)script.*)$", re.IGNORECASE)
_MEASURING = re.compile(r"google-?analytics|googletagmanager|gtag|matomo|plausible|doubleclick|hotjar", re.IGNORECASE)
# Code that adds content, unlike code that measures visits or changes classes.
_BUILDS = re.compile(
    r"innerHTML|insertAdjacent|appendChild|replaceChildren|\.append\(|createElement|createRoot|hydrate|\.mount\(|\.html\("
    r"|attachShadow|document\.write|fetch\(|XMLHttpRequest|import\("
)
_TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)([^<>]*)>|<!--")
_MOUNTS = frozenset({"div", "main", "section", "article", "app-root"})
_MOUNT_NAME = re.compile(
    r"^(?:app|root|__next|__nuxt|___gatsby|main|content|page|container|(?:react|vue)-.*|ember.*|svelte)$", re.IGNORECASE
)
_INTERACTIVE = re.compile(
    r"""\brole\s*=\s*["']?tab(?![\w-])|\bclass\s*=\s*["']?[^"'>]*(?:(?:load|show)-more|(?:cookie|consent)-wall)""",
    re.IGNORECASE,
)
_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "title", "textarea"})
_NO_TEXT = frozenset({"nav", "footer", "a", "button", "select"})


@dataclass
class _Scan:
    """What one pass over a page finds. `mounts` are the names of empty elements."""

    code: list[str] = field(default_factory=list)
    has_source: bool = False
    mounts: list[str] = field(default_factory=list)
    is_interactive: bool = False
    text_length: int = 0


def needs_rendering(page: Page) -> bool:
    """Return True if scripts probably add a part of the page's text; False for a page that is rendered already."""
    if page.rendered or b"<script" not in page.body[:MAX_BYTES].lower():
        return False
    found = _scan(page.body[:MAX_BYTES].decode("utf-8", "replace"))
    code = "\n".join(found.code)
    builds = _BUILDS.search(code) is not None
    if not (builds or found.has_source):
        return False
    if any(_MOUNT_NAME.match(name) or _is_used(name, code) for name in found.mounts[:20]):
        return True
    return (builds and found.is_interactive) or found.text_length < _LITTLE_TEXT


def _scan(html: str) -> _Scan:
    """Return the scripts, empty elements, interactive elements and the length of text outside links and menus."""
    found = _Scan()
    position, hidden, opened = 0, 0, ""  # `opened`: name of the mount whose start tag was just read
    while match := _TAG.search(html, position):
        text = html[position : match.start()].strip()
        found.text_length += 0 if hidden else len(text)
        opened = "" if text else opened
        position = match.end()
        closing, name, values = match.groups()
        if name is None:
            position = html.find("-->", position) + 3
        elif name.lower() in _SKIPPED and not closing:
            position = _skip(html, position, name.lower(), values, found)
        elif name.lower() in _NO_TEXT:
            hidden = max(0, hidden + (-1 if closing else 1))
        if name is not None:
            if closing and opened and name.lower() in _MOUNTS:
                found.mounts.append(opened)
            opened = attributes(values).get("id", "") if name.lower() in _MOUNTS and not closing else ""
            found.is_interactive = found.is_interactive or _INTERACTIVE.search(values) is not None
        if position < match.end():  # an unclosed comment or script hides the rest
            break
    return found


def _skip(html: str, position: int, name: str, values: str, found: _Scan) -> int:
    """Return the position behind an element without text; note it if it is a script. Return 0 if it is not closed."""
    end = re.compile(f"</{name}", re.IGNORECASE).search(html, position)
    if name == "script":
        known = attributes(values)
        if _SCRIPT_TYPE.match(known.get("type", "")):
            source = known.get("src", "")
            found.has_source = found.has_source or bool(source and not _MEASURING.search(source))
            found.code.append("" if source else html[position : end.start() if end else len(html)])
    return end.end() if end else 0


def _is_used(name: str, code: str) -> bool:
    """Return True if code uses an element by its name."""
    return re.search(rf"""["'#]{re.escape(name)}["']""", code) is not None
