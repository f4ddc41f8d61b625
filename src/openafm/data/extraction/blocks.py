"""Split a DOM into text blocks with what the classifier and the Markdown writer need of their surroundings.

A block is the text between two boundaries of block-level elements. Inline markup is kept as `Span`s over its text. One pass
over the tree; time is linear in its size.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lxml.etree import _Element

# fmt: off
BLOCK_TAGS = (
    "p", "div", "li", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "dt", "dd", "figcaption",
    "figure", "section", "article", "main", "aside", "nav", "header", "footer", "ul", "ol", "dl", "table", "tbody", "thead",
    "tfoot", "tr", "caption", "form", "fieldset", "details", "summary", "address", "center", "body", "hr", "legend",
    "label", "button", "hgroup", "search", "menu", "dir", "noindex", "content", "post",
)
# fmt: on
"""Elements that bound blocks; the index of a tag is its code in features."""

LINE_BREAK = "\u2028"
"""What `<br>` becomes in the raw text of a block."""

_BLOCK_INDEX = {tag: index for index, tag in enumerate(BLOCK_TAGS)}
# fmt: off
_SKIPPED = frozenset((
    "script", "style", "template", "svg", "iframe", "object", "embed", "head", "select", "option", "datalist", "input",
    "textarea", "canvas", "audio", "video", "map", "area", "applet", "frame", "frameset", "noframes", "dialog", "progress",
    "meter", "link", "meta", "title", "base", "noscript",
))
# fmt: on
_MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "code": "`", "kbd": "`", "tt": "`", "samp": "`"}

TOKEN_GROUPS = {
    "comment": "comment|disqus|respond|discuss|repl(y|ies)|kommentar|comentario|talkback",
    "navigation": "nav|menu|^tabs?$|toolbar|skip|sitemap|topbar",
    "footer": "foot|bottom|colophon|impressum",
    "header": "header|masthead|topper|banner",
    "sidebar": "side|aside|^rail|^right$|secondary|widget|complementary",
    "share": "share|social|sharing|follow|twitter|facebook|addthis",
    "related": "relat|recommend|similar|more|also|suggest|popular|trend|teaser|latest|^most|outbrain|taboola|promo",
    "advert": "^ads?$|^ad(slot|container|wrap|unit|box)|advert|sponsor|werbung|anzeige|public|dfp|affiliate",
    "consent": "cookie|consent|gdpr|privacy",
    "breadcrumb": "crumb|^path$",
    "meta": "meta|byline|author|date|time|posted|publish|^tags?$|categor|info|credit|submitted|source",
    "caption": "caption|photo|image|gallery|figure|slide|media|carousel|legend",
    "content": "content|article|post|entry|body|story|text|main|blog|page|prose|single",
    "newsletter": "newsletter|subscri|signup|mailing|paywall|register|premium|donat",
    "title": "title|headline|heading|kicker|^dek|standfirst|^lead$|^lede|intro|summary|excerpt|abstract|perex|vorspann",
    "popup": "popup|modal|overlay|lightbox|tooltip|dialog|toast|dropdown|drawer|flyout",
    "hidden": "hidden|^hide|invisible|^sr$|screen|visually|noprint",
    "pagination": "pagin|pager|^prev|^next|jump",
    "legal": "copyright|legal|disclaimer|terms|license|rights|imprint",
    "login": "login|signin|account|user|profile|avatar|^bio",
    "list": "list|grid|cards?$|feed|archive|items?$|^row|tile",
    "search": "search|filter|form$|query",
    "shop": "price|product|shop|buy|cart$|rating|review|vote|poll|quiz|event|calendar|weather|stock",
    "toc": "^toc|outline|^index$",
    "box": "quote|bubble|pull|highlight|fact|infobox|^box|inset",
    "rich": "markdown|wysiwyg|richtext|paragraph|bodytext|articlebody|postbody|entrycontent|artikel|formatted|^prose",
}
"""Groups of words in class names, ids and roles. Names are split at capitals, hyphens and underscores."""

_CONTENT_NOUNS = frozenset(
    ("article", "entry", "post", "story", "content", "body", "text", "main", "news", "blog", "single", "page", "field")
)
_GROUP_PATTERNS = tuple(re.compile(pattern) for pattern in TOKEN_GROUPS.values())
_WORD = re.compile(r"[A-Z]?[a-z]+")
_TAG_BITS = {
    tag: 1 << (len(TOKEN_GROUPS) + index)
    for index, tag in enumerate(
        (
            "nav",
            "header",
            "footer",
            "aside",
            "article",
            "main",
            "section",
            "form",
            "table",
            "ul",
            "figure",
            "blockquote",
            "address",
        )
    )
} | {"ol": 1 << (len(TOKEN_GROUPS) + 9)}
NUM_BITS = len(TOKEN_GROUPS) + 15
_HIDDEN_BIT, _PAIR_BIT = 1 << (NUM_BITS - 1), 1 << (NUM_BITS - 2)
_MAX_NAMES = 200  # characters of class names that are read
_NAME_ATTRIBUTES = frozenset(("class", "id", "role", "itemprop"))
_HIDING_ATTRIBUTES = frozenset(("style", "hidden", "aria-hidden"))
_OTHER, _SKIP, _BLOCK, _LINK, _MARK, _OBJECT = range(6)
_KINDS = (
    dict.fromkeys(_SKIPPED, _SKIP)
    | dict.fromkeys(BLOCK_TAGS, _BLOCK)
    | {"a": _LINK}
    | dict.fromkeys(_MARKS, _MARK)
    | dict.fromkeys(("br", "img", "math"), _OBJECT)
)
_STYLE_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


@dataclass(slots=True)
class Span:
    """Inline markup of a block: characters `start` to `stop` of its raw text. `mark` is Markdown; `url` is for links."""

    start: int
    stop: int
    mark: str
    url: str = ""


@dataclass(slots=True)
class Image:
    """An image before the character `position` of a block's raw text."""

    url: str
    alt: str
    kind: str = "image"


@dataclass(slots=True)
class Container:
    """A block-level element. `parent` is the index of its parent container, -1 at the root.

    Containers are in document order: those below this one are the next ones, up to `stop`.
    """

    parent: int
    tag: str
    tag_code: int
    bits: int  # token groups of its own class, id and tag
    inherited: int  # `bits` of it and all its ancestors
    depth: int
    names: str  # class names and id
    stop: int = 0


@dataclass(slots=True)
class Block:
    """A run of text inside one container. `raw` is the text as in the page; `text` has its white space collapsed."""

    container: int
    raw: str
    text: str
    link_chars: int = 0
    num_links: int = 0
    num_breaks: int = 0
    spans: list[Span] = field(default_factory=list)
    preformatted: bool = False


@dataclass(slots=True)
class PageBlocks:
    """Blocks and containers of a page. `images` are (number of blocks before it, its container, image)."""

    blocks: list[Block]
    containers: list[Container]
    images: list[tuple[int, int, Image]]


@functools.lru_cache(maxsize=1 << 16)
def _word_bits(word: str) -> int:
    """The token groups that occur in a word of a class, id or role."""
    return sum(1 << index for index, pattern in enumerate(_GROUP_PATTERNS) if pattern.search(word))


@functools.lru_cache(maxsize=1 << 16)
def _name_bits(names: str) -> int:
    """The token groups of class names, and `_PAIR_BIT` if one of them joins two nouns of content, as in `article-body`."""
    bits = 0
    for name in names.split():
        words = [word.lower() for word in _WORD.findall(name)]
        for word in words:
            bits |= _word_bits(word)
        if len(words) > 1 and len(_CONTENT_NOUNS.intersection(words)) > 1:
            bits |= _PAIR_BIT
    return bits


def split_blocks(root: _Element) -> PageBlocks:
    """Return the blocks of a DOM in document order."""
    return _Splitter().split(root)


class _Splitter:
    def __init__(self) -> None:
        self.page = PageBlocks([], [], [])
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[str] = []
        self._length = self._link_chars = self._num_links = self._num_breaks = 0
        self._spans: list[Span] = []

    def split(self, root: _Element) -> PageBlocks:
        from lxml.etree import iterwalk

        containers = self.page.containers
        containers.append(Container(-1, "body", _BLOCK_INDEX["body"], 0, 0, 0, ""))
        current = link_depth = 0
        open_marks: list[tuple[int, str, str]] = []
        walker = iterwalk(root, events=("start", "end"))
        for event, element in walker:
            tag = element.tag
            kind = _KINDS.get(tag, _OTHER)
            if event == "start":
                if kind != _OTHER:
                    if kind == _SKIP:
                        walker.skip_subtree()
                        continue
                    if kind == _BLOCK:
                        if self._pieces:
                            self._flush(current)
                        above = containers[current]
                        bits, names = _element_bits(element, tag)
                        code = _BLOCK_INDEX[tag]
                        containers.append(
                            Container(current, tag, code, bits, above.inherited | bits, above.depth + 1, names)
                        )
                        current = len(containers) - 1
                        if tag == "pre":
                            self._preformatted(element, current)
                            walker.skip_subtree()
                            continue
                    elif kind == _LINK:
                        link_depth += 1
                        self._num_links += 1
                        open_marks.append((self._length, "", element.get("href") or ""))
                    elif kind == _MARK:
                        open_marks.append((self._length, _MARKS[tag], ""))
                    elif self._inline_object(element, tag, current):
                        walker.skip_subtree()
                        continue
                text = element.text
            else:
                if kind == _BLOCK:
                    if self._pieces:
                        self._flush(current)
                    containers[current].stop = len(containers)
                    current = max(containers[current].parent, 0)
                    if open_marks:
                        open_marks = [(0, mark, url) for _, mark, url in open_marks]
                elif kind in (_LINK, _MARK) and open_marks:
                    start, mark, url = open_marks.pop()
                    if start < self._length:
                        self._spans.append(Span(start, self._length, mark, url))
                    if kind == _LINK:
                        link_depth -= 1
                text = element.tail
            if text and (self._pieces or not text.isspace()):
                self._pieces.append(text)
                self._length += len(text)
                if link_depth:
                    self._link_chars += len(text)
        self._flush(0)
        containers[0].stop = len(containers)
        return self.page

    def _inline_object(self, element: _Element, tag: str, container: int) -> bool:
        """Add a line break, an image or a formula. True if what is below the element is done."""
        if tag == "br":
            self._num_breaks += 1
            self._append(LINE_BREAK)
            return False
        if tag == "img":
            self._image(element, container)
            return False
        self._append(_formula(element))
        return True

    def _append(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)

    def _flush(self, container: int) -> None:
        """End the current block."""
        raw = "".join(self._pieces)
        text = " ".join(raw.split())
        if text:
            self.page.blocks.append(
                Block(
                    container,
                    raw,
                    text,
                    min(self._link_chars, len(text)),
                    self._num_links,
                    self._num_breaks,
                    self._spans,
                )
            )
        self._reset()

    def _preformatted(self, element: _Element, container: int) -> None:
        raw = "".join(element.itertext())
        if text := " ".join(raw.split()):
            self.page.blocks.append(Block(container, raw, text, preformatted=True))

    def _image(self, element: _Element, container: int) -> None:
        url = element.get("src") or element.get("data-src") or ""
        if url and not url.startswith("data:"):
            self.page.images.append(
                (len(self.page.blocks), container, Image(url, " ".join((element.get("alt") or "").split())))
            )


def _element_bits(element: _Element, tag: str) -> tuple[int, str]:
    """The token groups of an element, and its class names and id."""
    bits = _TAG_BITS.get(tag, 0)
    names = ""
    for key, value in element.items():
        if key in _NAME_ATTRIBUTES:
            bits |= _name_bits(value[:_MAX_NAMES])
            if key == "class" or key == "id":
                names += value + " "
        elif key in _HIDING_ATTRIBUTES and _is_hidden(key, value):
            bits |= _HIDDEN_BIT
    return bits, names


def _is_hidden(key: str, value: str) -> bool:
    if key == "style":
        return _STYLE_HIDDEN.search(value) is not None
    return key == "hidden" or value == "true"


def _formula(element: _Element) -> str:
    """The TeX source of a formula, or its text."""
    for annotation in element.iter("annotation"):
        if "tex" in (annotation.get("encoding") or "") and annotation.text:
            return f" ${annotation.text.strip()}$ "
    source = element.get("alttext")
    return f" ${source.strip()}$ " if source else " " + " ".join("".join(element.itertext()).split()) + " "
