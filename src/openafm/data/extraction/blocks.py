"""Split a DOM into text blocks with what the classifier and the Markdown writer need of their surroundings.

A block is the text between two boundaries of block-level elements. Inline markup is kept as `Span`s over its text. One pass
over the tree; time is linear in its size.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

# fmt: off
BLOCK_TAGS = (
    "p", "div", "li", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "dt", "dd", "figcaption",
    "figure", "section", "article", "main", "aside", "nav", "header", "footer", "ul", "ol", "dl", "table", "tbody", "thead",
    "tfoot", "tr", "caption", "form", "fieldset", "details", "summary", "address", "center", "body", "hr", "legend",
    "label", "button", "hgroup", "search", "menu", "dir", "noindex", "content", "post",
)
# fmt: on
"""Elements that bound blocks."""

LINE_BREAK = "\u2028"
"""What `<br>` becomes in the raw text of a block."""

_BLOCK_TAG_SET = frozenset(BLOCK_TAGS)
# Elements that are never content. `nav`, `footer` and `button` hold 43 % of the blocks of the tuning pages and no gold word.
# fmt: off
_SKIPPED = frozenset((
    "script", "style", "template", "svg", "iframe", "object", "embed", "head", "select", "option", "datalist", "input",
    "textarea", "canvas", "audio", "video", "map", "area", "applet", "frame", "frameset", "noframes", "dialog", "progress",
    "meter", "link", "meta", "title", "base", "noscript", "nav", "footer", "button",
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
_OTHER, _SKIP, _BLOCK, _BOUNDARY, _LINK, _MARK, _OBJECT, _TEXT = range(8)
_MAX_DEPTH = 256  # containers; deeper elements only bound blocks, so that walks to the root are short
_KINDS = (
    dict.fromkeys(BLOCK_TAGS, _BLOCK)
    | dict.fromkeys(_SKIPPED, _SKIP)
    | {"a": _LINK}
    | dict.fromkeys(_MARKS, _MARK)
    | dict.fromkeys(("br", "img", "math"), _OBJECT)
    | {"-text": _TEXT}
)
_INLINE, _BOUNDING = frozenset((_LINK, _MARK)), frozenset((_BLOCK, _BOUNDARY))
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
class Containers:
    """The block-level elements of a page as parallel lists, in document order.

    The descendants of an element are the next ones, up to its `stops`. One object for each element would take more time and
    start the garbage collector on each page.
    """

    parents: list[int] = field(default_factory=list)  # -1 at the root
    tags: list[str] = field(default_factory=list)
    bits: list[int] = field(default_factory=list)  # token groups of its own class, id and tag
    inherited: list[int] = field(default_factory=list)  # `bits` of it and all its ancestors
    depths: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # class names and id
    stops: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tags)

    def add(self, parent: int, tag: str, bits: int, inherited: int, depth: int, names: str) -> None:
        """Add an element that is not complete."""
        self.parents.append(parent)
        self.tags.append(tag)
        self.bits.append(bits)
        self.inherited.append(inherited)
        self.depths.append(depth)
        self.names.append(names)
        self.stops.append(0)


@dataclass(slots=True)
class Block:
    """A run of text inside one container. `raw` is the text as in the page; `text` has its white space collapsed."""

    container: int
    raw: str
    text: str
    link_chars: int = 0
    num_links: int = 0
    num_breaks: int = 0
    spans: Sequence[Span] = ()
    preformatted: bool = False


@dataclass(slots=True)
class PageBlocks:
    """Blocks and containers of a page. `images` are (number of blocks before it, its container, image)."""

    blocks: list[Block]
    containers: Containers
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


def split_blocks(root: LexborNode, max_blocks: int = sys.maxsize) -> PageBlocks:
    """Return the blocks of a DOM in document order. A page with more than `max_blocks` is cut soon after."""
    return _Splitter().split(root, max_blocks)


class _Splitter:
    """The state of one pass: the pieces of text and the inline markup of the block that is not complete yet."""

    def __init__(self) -> None:
        self.page = PageBlocks([], Containers(), [])
        self._pieces: list[str] = []
        self._open: list[tuple[int, str, str]] = []  # first piece, mark and URL of the open inline elements
        self._closed: list[tuple[int, int, str, str]] = []
        self._current = 0  # the innermost open container

    def split(self, root: LexborNode, max_blocks: int) -> PageBlocks:
        containers, blocks, pieces = self.page.containers, self.page.blocks, self._pieces
        containers.add(-1, "body", 0, 0, 0, "")
        ancestors: list[tuple[LexborNode, int]] = []
        node = root
        while True:
            tag = node.tag or ""
            kind = _KINDS.get(tag, _OTHER)
            child = None
            if kind == _TEXT:
                text = node.text_content
                if text and (pieces or not text.isspace()):
                    pieces.append(text)
            elif kind == _OTHER:
                child = node.child
            elif kind == _SKIP:
                if pieces and tag in _BLOCK_TAG_SET:
                    self._flush()
            else:
                if kind == _BLOCK:
                    kind = self._enter(node, tag)
                if kind == _OBJECT:
                    self._object(node, tag)
                else:
                    if kind in _INLINE:
                        url = (node.attributes.get("href") or "") if kind == _LINK else ""
                        self._open.append((len(pieces), _MARKS.get(tag, ""), url))
                    child = node.child
                    if child is None:
                        self._leave(kind)
            if child is not None:
                ancestors.append((node, kind))
                node = child
                continue
            while (following := node.next) is None:
                if not ancestors or len(blocks) > max_blocks:
                    self._flush()
                    containers.stops[0] = len(containers)
                    return self.page
                node, kind = ancestors.pop()
                if kind != _OTHER:
                    self._leave(kind)
            node = following

    def _enter(self, node: LexborNode, tag: str) -> int:
        """Begin a block-level element. Its kind decides how what is inside is read and how it ends."""
        if self._pieces:
            self._flush()
        containers, parent = self.page.containers, self._current
        depth = containers.depths[parent]
        if depth >= _MAX_DEPTH:
            return _BOUNDARY
        bits, names = _element_bits(node, tag)
        self._current = len(containers.tags)
        containers.add(parent, tag, bits, containers.inherited[parent] | bits, depth + 1, names)
        return _OBJECT if tag == "pre" else _BLOCK

    def _leave(self, kind: int) -> None:
        """End the innermost element of a kind."""
        if kind in _BOUNDING:
            if self._pieces:
                self._flush()
            if kind == _BLOCK:
                containers = self.page.containers
                containers.stops[self._current] = len(containers.tags)
                self._current = containers.parents[self._current]
        elif self._open:
            start, mark, url = self._open.pop()
            self._closed.append((start, len(self._pieces), mark, url))

    def _object(self, node: LexborNode, tag: str) -> None:
        """Add an element whose content is not visited."""
        if tag == "br":
            self._pieces.append(LINE_BREAK)
        elif tag == "img":
            self._image(node)
        elif tag == "math":
            self._pieces.append(_formula(node))
        else:
            raw = node.text()
            if text := " ".join(raw.split()):
                self.page.blocks.append(Block(self._current, raw, text, preformatted=True))
            self._leave(_BLOCK)

    def _flush(self) -> None:
        """End the current block. Inline elements that are open go on in the next one."""
        pieces = self._pieces
        raw = "".join(pieces)
        text = " ".join(raw.split())
        if text:
            block = Block(self._current, raw, text, num_breaks=pieces.count(LINE_BREAK))
            if self._closed or self._open:
                self._closed += [(start, len(pieces), mark, url) for start, mark, url in self._open]
                self._mark(block)
            self.page.blocks.append(block)
        self._closed = []
        if self._open:
            self._open = [(0, mark, url) for _, mark, url in self._open]
        pieces.clear()

    def _mark(self, block: Block) -> None:
        """Set the spans and link counts of a block from ranges of its pieces."""
        offsets = [0, *itertools.accumulate(map(len, self._pieces))]
        block.spans = spans = []
        for first, stop, mark, url in self._closed:
            if first < stop:
                spans.append(Span(offsets[first], offsets[stop], mark, url))
                if not mark:
                    block.link_chars += offsets[stop] - offsets[first]
                    block.num_links += 1
        block.link_chars = min(block.link_chars, len(block.text))

    def _image(self, node: LexborNode) -> None:
        attributes = node.attributes
        sources = (attributes.get("src") or "", attributes.get("data-src") or "")  # lazy pages have a placeholder in src
        if url := next((each for each in sources if each and not each.startswith("data:")), ""):
            alt = " ".join((attributes.get("alt") or "").split())
            self.page.images.append((len(self.page.blocks), self._current, Image(url, alt)))


def _element_bits(node: LexborNode, tag: str) -> tuple[int, str]:
    """The token groups of an element, and its class names and id."""
    bits = _TAG_BITS.get(tag, 0)
    names = ""
    for key, value in node.attributes.items():
        if key in _NAME_ATTRIBUTES:
            if value:
                bits |= _name_bits(value[:_MAX_NAMES])
                if key == "class" or key == "id":
                    names += value + " "
        elif key in _HIDING_ATTRIBUTES and _is_hidden(key, value or ""):
            bits |= _HIDDEN_BIT
    return bits, names


def _is_hidden(key: str, value: str) -> bool:
    if key == "style":
        return _STYLE_HIDDEN.search(value) is not None
    return key == "hidden" or value == "true"


def _formula(node: LexborNode) -> str:
    """The TeX source of a formula, or its text."""
    for annotation in node.css("annotation"):
        text = annotation.text().strip()
        if "tex" in (annotation.attributes.get("encoding") or "") and text:
            return f" ${text}$ "
    source = node.attributes.get("alttext")
    return f" ${source.strip()}$ " if source else " " + " ".join(node.text().split()) + " "
