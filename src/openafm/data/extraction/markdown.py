"""Write chosen blocks as Markdown: headings, lists, tables, code, quotes and links, with images at their offsets."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urljoin

from openafm.data.extraction.blocks import LINE_BREAK, Block, PageBlocks, Span
from openafm.data.web.documents import Media

_LIST_INDENT = "  "
_NO_IMAGES = frozenset(("nav", "footer", "aside", "header", "form", "button"))
_FIGURE = frozenset(("figure",))
_MIN_FOUND, _PREFIX = 20, 60  # characters of a block by which its place in another text is found
_MAX_TABLE_CELL = 600  # characters; longer cells are layout, not data
_PLAIN_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(?=/)")
_PLAIN_PATH = re.compile(r"/(?!/)[a-zA-Z0-9_~.,/%+=&!:@$()*-]*(?:\?[a-zA-Z0-9_~.,/%+=&!:@$()*?-]+)?")
_PLAIN_URL = re.compile(_PLAIN_ORIGIN.pattern + _PLAIN_PATH.pattern)
"""URLs that `urljoin` returns as they are, or after the origin: most of a page, and it takes 20 microseconds for each."""

_IMAGE_DISTANCE = 2  # blocks between an image and the next chosen block


@dataclass(frozen=True, kw_only=True)
class MarkdownText:
    """Markdown and the media in it."""

    text: str
    media: tuple[Media, ...]


def write_markdown(
    page: PageBlocks, chosen: Sequence[bool], url: str, *, links: bool, structure: bool = True
) -> MarkdownText:
    """Return the chosen blocks as Markdown. Without `structure`, as plain lines; without `links`, link texts alone."""
    writer = _Writer(page, url, links, structure)
    for index, is_chosen in enumerate(chosen):
        if is_chosen:
            writer.add(index, page.blocks[index])
    return writer.finish()


class _Writer:
    def __init__(self, page: PageBlocks, url: str, links: bool, structure: bool) -> None:
        self._page, self._url, self._links, self._structure = page, url, links, structure
        self._parts: list[str] = []
        self._length = 0
        self._offsets: dict[int, int] = {}  # start of each chosen block
        self._data_tables: dict[int, bool] | None = None
        self._reads_cells = structure and "table" in page.containers.tags
        self._table = -1
        self._rows: dict[int, dict[int, str]] = {}
        self._table_blocks: list[int] = []
        self._last_list = -1
        self._items: dict[int, int] = {}  # number of the next item of an ordered list
        self._seen_items: set[int] = set()

    def add(self, index: int, block: Block) -> None:
        table, row, cell = self._cell_of(block.container) if self._reads_cells else (-1, -1, -1)
        if table != self._table:
            self._end_table()
        if table >= 0:
            self._table = table
            cells = self._rows.setdefault(row, {})
            text = " ".join(self._inline(block).split())
            cells[cell] = f"{cells[cell]} {text}" if cell in cells else text
            self._table_blocks.append(index)
            return
        self._offsets[index] = self._length + (2 if self._parts else 0)
        self._emit(self._formatted(block) if self._structure else _plain(block))

    def finish(self) -> MarkdownText:
        self._end_table()
        media = _media(self._page, self._offsets, self._length, self._url)
        return MarkdownText(text="".join(self._parts), media=media)

    def _emit(self, text: str, separator: str = "\n\n") -> None:
        if not text:
            return
        if self._parts:
            text = separator + text
        self._parts.append(text)
        self._length += len(text)

    def _formatted(self, block: Block) -> str:
        containers = self._page.containers
        if block.preformatted:
            code = block.raw.strip("\n")
            fence = "````" if "```" in code else "```"
            return f"{fence}\n{code}\n{fence}"
        text = self._inline(block)
        tag = containers.tags[block.container]
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            return "#" * int(tag[1]) + " " + " ".join(text.split())
        lists, item, quotes = 0, -1, 0
        ordered = -1
        at = block.container
        while at > 0:
            name = containers.tags[at]
            if name == "li" and item < 0:
                item = at
            elif name in ("ul", "ol", "menu", "dir"):
                lists += 1
                if lists == 1 and name == "ol":
                    ordered = at
            elif name == "blockquote":
                quotes += 1
            at = containers.parents[at]
        if tag == "dd":
            text = f": {text}"
        if item >= 0 and lists:
            text = self._list_item(text, item, lists, ordered)
        if quotes:
            prefix = "> " * min(quotes, 3)
            text = "\n".join(prefix + line for line in text.split("\n"))
        return text

    def _list_item(self, text: str, item: int, depth: int, ordered: int) -> str:
        indent = _LIST_INDENT * (min(depth, 8) - 1)
        marker = "- "
        if ordered >= 0:
            number = self._items.get(ordered, 0) + (item not in self._seen_items)
            self._items[ordered] = number
            marker = f"{number}. "
        if item in self._seen_items:
            marker = " " * len(marker)
        self._seen_items.add(item)
        inner = "\n" + indent + " " * len(marker)
        return indent + marker + inner.join(text.split("\n"))

    def _inline(self, block: Block) -> str:
        spans = [span for span in block.spans if span.mark or (self._links and span.url)] if self._structure else []
        if not spans and LINE_BREAK not in block.raw:
            return block.text
        raw = _marked(block.raw, spans, self._url) if spans else block.raw
        lines = [" ".join(line.split()) for line in raw.split(LINE_BREAK)]
        text = "\n".join(lines).strip()
        while "\n\n\n" in text:
            text = text.replace("\n\n\n", "\n\n")
        return text

    def _cell_of(self, container: int) -> tuple[int, int, int]:
        """The table, row and cell of a block in a data table; -1 for other blocks."""
        containers = self._page.containers
        cell = row = -1
        at = container
        while at > 0:
            tag = containers.tags[at]
            if tag in ("td", "th") and cell < 0:
                cell = at
            elif tag == "tr" and row < 0:
                row = at
            elif tag == "table":
                return (at, row, cell) if cell >= 0 and row >= 0 and self._is_data_table(at) else (-1, -1, -1)
            at = containers.parents[at]
        return -1, -1, -1

    def _is_data_table(self, table: int) -> bool:
        """True if a table has two rows of two cells, no long cell and no table inside. Layout tables fail."""
        if self._data_tables is None:
            self._data_tables = _data_tables(self._page)
        return self._data_tables[table]

    def _end_table(self) -> None:
        if self._rows:
            rows = [list(cells.values()) for cells in self._rows.values()]
            width = max(map(len, rows))
            start = self._length + (2 if self._parts else 0)
            lines = [
                "| " + " | ".join(cell.replace("|", "\\|") for cell in row + [""] * (width - len(row))) + " |"
                for row in rows
            ]
            lines.insert(1, "|" + " --- |" * width)
            for index in self._table_blocks:
                self._offsets[index] = start
            self._emit("\n".join(lines))
        self._rows, self._table_blocks, self._table = {}, [], -1


def media_in(text: str, page: PageBlocks, url: str) -> tuple[Media, ...]:
    """Return the images of a page that are next to blocks in `text`, which another extractor found on the page."""
    offsets, start = {}, 0
    for index, block in enumerate(page.blocks):
        at = text.find(block.text[:_PREFIX], start) if len(block.text) >= _MIN_FOUND else -1
        if at >= 0:
            offsets[index] = start = at
    return _media(page, offsets, len(text), url)


def _media(page: PageBlocks, offsets: Mapping[int, int], length: int, url: str) -> tuple[Media, ...]:
    """The images next to blocks with an offset in a text of `length` characters, with the caption of their figure."""
    containers, blocks = page.containers, page.blocks
    media = []
    indices = sorted(offsets)
    for position, container, image in page.images:
        if _nearest(page, container, _NO_IMAGES) >= 0:
            continue
        following = range(position, min(position + _IMAGE_DISTANCE, len(blocks)))
        offset = next((offsets[index] for index in following if index in offsets), -1)
        if offset < 0:
            preceding = range(position - 1, max(position - 1 - _IMAGE_DISTANCE, -1), -1)
            if not any(index in offsets for index in preceding):
                continue
            next_one = bisect.bisect_left(indices, position)
            offset = offsets[indices[next_one]] if next_one < len(indices) else length
        figure = _nearest(page, container, _FIGURE)
        captions = [
            block.text
            for block in blocks[position : position + 4]
            if figure >= 0
            and containers.tags[block.container] == "figcaption"
            and _nearest(page, block.container, _FIGURE) == figure
        ]
        media.append(
            Media(
                url=joined(url, image.url),
                kind=image.kind,
                alt=image.alt,
                caption=" ".join(captions[:1]),
                offset=offset,
            )
        )
    return tuple(media)


def _nearest(page: PageBlocks, container: int, tags: frozenset[str]) -> int:
    """The nearest of a container and its ancestors with one of the tags; -1 without one."""
    while container > 0:
        if page.containers.tags[container] in tags:
            return container
        container = page.containers.parents[container]
    return -1


def _data_tables(page: PageBlocks) -> dict[int, bool]:
    containers = page.containers
    table_of: list[int] = []
    rows: dict[int, dict[int, int]] = {}
    result: dict[int, bool] = {}
    for index, (tag, parent) in enumerate(zip(containers.tags, containers.parents, strict=True)):
        outer = table_of[parent] if parent >= 0 else -1
        table_of.append(index if tag == "table" else outer)
        if tag == "table":
            result[index] = True
            rows[index] = {}
            if outer >= 0:
                result[outer] = False
        elif tag in ("td", "th") and outer >= 0:
            rows[outer][parent] = rows[outer].get(parent, 0) + 1
    for table, cells in rows.items():
        if sum(count >= 2 for count in cells.values()) < 2:
            result[table] = False
    for container in page.container_of[page.num_chars > _MAX_TABLE_CELL].tolist():
        table = table_of[container]
        if table >= 0:
            result[table] = False
    return result


def _plain(block: Block) -> str:
    return block.raw.strip("\n") if block.preformatted else block.text


def _marked(raw: str, spans: Sequence[Span], url: str) -> str:
    """The raw text with Markdown for its spans. Spans that cross another are left out."""
    inserts: list[tuple[int, int, str]] = []
    last_stop = 0
    for span in sorted(spans, key=lambda item: (item.start, -item.stop)):
        inner = raw[span.start : span.stop]
        start = span.start + len(inner) - len(inner.lstrip())
        stop = span.stop - len(inner) + len(inner.rstrip())
        if start >= stop or start < last_stop:
            continue
        last_stop = stop
        if span.url:
            if not span.url.startswith(("#", "javascript:")):
                inserts += [(start, 0, "["), (stop, 1, f"]({joined(url, span.url)})")]
        elif LINE_BREAK not in raw[start:stop]:
            inserts += [(start, 0, span.mark), (stop, 1, span.mark)]
    pieces, at = [], 0
    for position, _, text in inserts:
        pieces += [raw[at:position], text]
        at = position
    pieces.append(raw[at:])
    return "".join(pieces)


def joined(base: str, url: str) -> str:
    """Return an absolute URL without spaces; the URL itself if it is malformed."""
    if _PLAIN_URL.fullmatch(url):
        return url
    if _PLAIN_PATH.fullmatch(url) and "/." not in url and (origin := _origin(base)):
        return origin + url
    try:
        return urljoin(base, url.strip()).replace(" ", "%20")
    except ValueError:
        return url


@functools.lru_cache(maxsize=256)
def _origin(base: str) -> str:
    """The scheme and host of a URL of the web with a plain host; empty for others."""
    found = _PLAIN_ORIGIN.match(base)
    return found[0] if found else ""
