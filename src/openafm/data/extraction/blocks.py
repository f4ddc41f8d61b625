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
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
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
MARKS = {"b": "**", "strong": "**", "i": "*", "em": "*", "code": "`", "kbd": "`", "tt": "`", "samp": "`"}

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

_CONTENT_NOUNS = (
    *("article", "entry", "post", "story", "content", "body", "text"),
    *("main", "news", "blog", "single", "page", "field"),
)
_GROUP_PATTERNS = tuple(re.compile(pattern) for pattern in TOKEN_GROUPS.values())
_ANY_GROUP = re.compile("|".join(TOKEN_GROUPS.values()))
_WORD = re.compile(r"[A-Z]?[a-z]+")
TAG_BITS = {
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
HIDDEN_BIT, PAIR_BIT = 1 << (NUM_BITS - 1), 1 << (NUM_BITS - 2)
_NOUN_BITS = {noun: 1 << (NUM_BITS + index) for index, noun in enumerate(_CONTENT_NOUNS)}  # of words, not of blocks
_MAX_NAMES = 200  # characters of class names that are read
_HIDING_ATTRIBUTES = frozenset(("style", "hidden", "aria-hidden"))
_OTHER_ATTRIBUTES = _HIDING_ATTRIBUTES | {"role", "itemprop"}
OTHER, _BLOCK, _BOUNDARY, _LINK, MARK, _OBJECT, _SKIP = range(7)
_MAX_DEPTH = 256  # containers; deeper elements only bound blocks, so that walks to the root are short
_NUM_STATIC_TAGS = 1 << 12  # Lexbor numbers the elements of HTML below this; other numbers are addresses
KINDS = (
    dict.fromkeys(BLOCK_TAGS, _BLOCK)
    | dict.fromkeys(_SKIPPED, _SKIP)
    | {"a": _LINK}
    | dict.fromkeys(MARKS, MARK)
    | dict.fromkeys(("br", "img", "math"), _OBJECT)
)
_STYLE_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


def group_bits(*groups: str) -> int:
    """Return the bits of groups of `TOKEN_GROUPS`."""
    return sum(1 << list(TOKEN_GROUPS).index(group) for group in groups)


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

    parents: Sequence[int]  # -1 at the root
    tags: Sequence[str]
    bits: Sequence[int]  # token groups of its own class, id and tag
    inherited: Sequence[int]  # `bits` of it and all its ancestors
    depths: Sequence[int]
    names: Sequence[str]  # class names and id
    stops: Sequence[int]

    def __len__(self) -> int:
        return len(self.tags)


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
    """Blocks and containers of a page. `images` are (number of blocks before it, its container, image).

    The arrays hold what the blocks have, so that counting over all blocks reads none.
    """

    blocks: Sequence[Block]
    containers: Containers
    images: list[tuple[int, int, Image]]
    container_of: NDArray[np.int32]
    num_chars: NDArray[np.int32]
    link_chars: NDArray[np.int32]
    num_links: NDArray[np.int32]


@functools.lru_cache(maxsize=1 << 16)
def word_bits(word: str) -> int:
    """The token groups that occur in a word of a class, id or role, and a bit of `_NOUN_BITS` for a noun of content."""
    word = word.lower()
    bits = _NOUN_BITS.get(word, 0)
    if _ANY_GROUP.search(word):  # one word in six
        bits |= sum([1 << index for index, pattern in enumerate(_GROUP_PATTERNS) if pattern.search(word)])
    return bits


@functools.lru_cache(maxsize=1 << 16)
def _names_bits(names: str) -> int:
    """The token groups of names, and `PAIR_BIT` if one of them joins two nouns of content, as `article-body` does."""
    bits = 0
    for word in _WORD.findall(names):
        bits |= word_bits(word)
    nouns = bits >> NUM_BITS
    bits ^= nouns << NUM_BITS
    if nouns & (nouns - 1) and any(map(_is_pair, names.split())):
        bits |= PAIR_BIT
    return bits


def _is_pair(name: str) -> bool:
    return len({bit for word in _WORD.findall(name) if (bit := _NOUN_BITS.get(word.lower()))}) > 1


def split_blocks(root: LexborNode, max_blocks: int = sys.maxsize) -> PageBlocks:
    """Return the blocks of a DOM in document order. A page with more than `max_blocks` is cut soon after."""
    return _Splitter().split(root, max_blocks)


@functools.cache
def _static_kinds() -> dict[int, tuple[int, str]]:
    """The kind and tag of each element by Lexbor's number of the tag, filled as elements occur."""
    return {}


def _kind_of(node: LexborNode) -> tuple[int, str]:
    """The kind and the tag of a node. Numbers above `_NUM_STATIC_TAGS` are of one page, so they are not stored."""
    tag = node.tag or ""
    found = (KINDS.get(tag, OTHER), tag)
    if node.tag_id < _NUM_STATIC_TAGS:
        _static_kinds()[node.tag_id] = found
    return found


class _Splitter:
    """The state of one pass: the pieces of text and the inline markup of the block that is not complete yet."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._images: list[tuple[int, int, Image]] = []
        self._elements: list[tuple[int, str, int, int, int, str]] = [(-1, "body", 0, 0, 0, "")]  # as in `Containers`
        self._stops = [0]
        self._current = 0  # the innermost open container
        self._pieces: list[str] = []
        self._open: list[tuple[int, str, str]] = []  # first piece, mark and URL of the open inline elements
        self._closed: list[tuple[int, int, str, str]] = []

    def split(self, root: LexborNode, max_blocks: int) -> PageBlocks:
        blocks, pieces, opened = self._blocks, self._pieces, self._open
        static_kind = _static_kinds().get
        ancestors: list[tuple[LexborNode, int]] = []
        node = root
        while True:
            if (text := node.text_content) is not None:
                if text and (pieces or not text.isspace()):
                    pieces.append(text)
            else:
                kind, tag = static_kind(node.tag_id) or _kind_of(node)
                if kind == _BLOCK:
                    kind = self._enter(node, tag)
                elif kind == _LINK:
                    opened.append((len(pieces), "", node.attributes.get("href") or ""))
                elif kind == MARK:
                    opened.append((len(pieces), MARKS[tag], ""))
                if kind <= MARK:
                    if (child := node.child) is not None:
                        ancestors.append((node, kind))
                        node = child
                        continue
                    if kind:
                        self._leave(kind)
                elif kind == _OBJECT:
                    self._object(node, tag)
                elif pieces and tag in _BLOCK_TAG_SET:
                    self._flush()
            while (following := node.next) is None:
                if not ancestors or len(blocks) > max_blocks:
                    return self._finish()
                node, kind = ancestors.pop()
                if kind:
                    self._leave(kind)
            node = following

    def _finish(self) -> PageBlocks:
        import numpy as np

        self._flush()
        self._stops[0] = len(self._stops)
        parents, tags, bits, inherited, depths, names = zip(*self._elements, strict=True)
        containers = Containers(parents, tags, bits, inherited, depths, names, self._stops)
        blocks = self._blocks
        rows = [(block.container, len(block.text), block.link_chars, block.num_links) for block in blocks]
        numbers = np.array(rows, dtype=np.int32).reshape(-1, 4).T
        return PageBlocks(blocks, containers, self._images, *numbers)

    def _enter(self, node: LexborNode, tag: str) -> int:
        """Begin a block-level element. Its kind decides how what is inside is read and how it ends."""
        if self._pieces:
            self._flush()
        parent = self._current
        _, _, _, inherited, depth, _ = self._elements[parent]
        if depth >= _MAX_DEPTH:
            return _BOUNDARY
        bits, names = TAG_BITS.get(tag, 0), ""
        if attributes := node.attributes:
            for key, value in attributes.items():
                if key == "class" or key == "id":
                    if value:
                        bits |= _names_bits(value[:_MAX_NAMES])
                        names += value + " "
                elif key in _OTHER_ATTRIBUTES:
                    bits |= _attribute_bits(key, value or "")
        self._current = len(self._stops)
        self._stops.append(0)
        self._elements.append((parent, tag, bits, inherited | bits, depth + 1, names))
        return _OBJECT if tag == "pre" else _BLOCK

    def _leave(self, kind: int) -> None:
        """End the innermost element of a kind."""
        if kind <= _BOUNDARY:
            if self._pieces:
                self._flush()
            if kind == _BLOCK:
                current = self._current
                self._stops[current] = len(self._stops)
                self._current = self._elements[current][0]
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
                self._blocks.append(Block(self._current, raw, text, preformatted=True))
            self._leave(_BLOCK)

    def _flush(self) -> None:
        """End the current block. Inline elements that are open go on in the next one."""
        pieces = self._pieces
        raw = "".join(pieces)
        text = " ".join(raw.split())
        if text:
            block = Block(self._current, raw, text, 0, 0, pieces.count(LINE_BREAK))
            if self._closed or self._open:
                self._closed += [(start, len(pieces), mark, url) for start, mark, url in self._open]
                self._mark(block)
            self._blocks.append(block)
        if self._closed:
            self._closed = []
        if self._open:
            self._open[:] = [(0, mark, url) for _, mark, url in self._open]
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
            self._images.append((len(self._blocks), self._current, Image(url, alt)))


def _attribute_bits(key: str, value: str) -> int:
    """The bits of one of `_OTHER_ATTRIBUTES`."""
    if key in _HIDING_ATTRIBUTES:
        return HIDDEN_BIT if _is_hidden(key, value) else 0
    return _names_bits(value[:_MAX_NAMES])


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
