"""Tables of data on web pages: found, cleaned and expanded to a rectangle of cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openafm.core.libraries import needed
from openafm.data.web.documents import Dropped
from openafm.data.web.warc_reader import read_pages

_CELLS = {"td", "th"}
_LARGEST = {"rows": 40, "columns": 12, "cell": 80}


@dataclass(frozen=True)
class PageTable:
    """A table of a page: its caption, the header, and rows of equal length."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    page: str = ""
    """URL of the page, or the name of its file."""


def tables_of_file(path: Path) -> Iterator[PageTable]:
    """Yield the tables of an HTML file, or of the pages of a WARC file that may be used for training."""
    if not path.name.endswith((".warc", ".warc.gz")):
        yield from (replace(table, page=path.name) for table in tables_of_html(path.read_bytes()))
        return
    for page in read_pages(path):
        if not isinstance(page, Dropped) and not page.opt_out:
            yield from (replace(table, page=page.url) for table in tables_of_html(page.body))


def tables_of_html(html: str | bytes) -> Iterator[PageTable]:
    """Yield the tables of a page that hold data: a rectangle of short cells, not layout, forms or nested tables.

    Cells that span rows or columns are repeated. The header is the first row; other rows of header cells are left out.
    """
    with needed("tables of pages", "lxml", "data"):
        from lxml import etree
        from lxml import html as parser
    try:
        root = parser.document_fromstring(html)
    except (etree.ParserError, ValueError):
        return  # an empty page, or text with an encoding declaration that lxml refuses
    for table in root.iter("table"):
        if table.xpath("ancestor::table or .//table or .//form or .//input or .//img"):
            continue
        found = _read_table(table)
        if found is not None:
            yield found


def _read_table(table: Any) -> PageTable | None:
    grid = _expanded(table)
    if grid is None or not _is_data(grid):
        return None
    width = len(grid[0])
    named = [name or f"({index + 1})" for index, name in enumerate(grid[0])]
    if len(set(named)) < width:
        return None
    captions = table.xpath("./caption")
    rows = tuple(row for row in grid[1:] if any(row) and len(set(row)) > 1)
    if len(rows) < 2:
        return None
    return PageTable(title=_text(captions[0]) if captions else "", header=tuple(named), rows=rows)


def _expanded(table: Any) -> list[tuple[str, ...]] | None:
    """Return the cells with spans repeated; None if the table is too large or ragged."""
    cells: dict[tuple[int, int], str] = {}
    rows = table.xpath("./tr | ./thead/tr | ./tbody/tr | ./tfoot/tr")
    if len(rows) > _LARGEST["rows"]:
        return None
    for at, row in enumerate(rows):
        column = 0
        for cell in row:
            if cell.tag not in _CELLS:
                continue
            while (at, column) in cells:
                column += 1
            text = _text(cell)
            for down in range(_span(cell, "rowspan")):
                for across in range(_span(cell, "colspan")):
                    cells[at + down, column + across] = text
            column += 1
            if column > _LARGEST["columns"]:
                return None
    width = 1 + max((column for _, column in cells), default=0)
    if width > _LARGEST["columns"]:
        return None
    return [tuple(cells.get((at, column), "") for column in range(width)) for at in range(len(rows))]


def _is_data(grid: list[tuple[str, ...]]) -> bool:
    """True for at least three rows and two columns of short texts, most of them not empty."""
    if len(grid) < 3 or len(grid[0]) < 2:
        return False
    texts = [text for row in grid for text in row]
    filled = [text for text in texts if text]
    return 3 * len(filled) >= 2 * len(texts) and all(len(text) <= _LARGEST["cell"] for text in filled)


def _text(element: Any) -> str:
    """Return the visible text of an element on one line."""
    for hidden in element.xpath(".//script | .//style | .//sup[contains(@class, 'reference')]"):
        hidden.drop_tree()
    return re.sub(r"\s+", " ", element.text_content()).strip()


def _span(cell: Any, name: str) -> int:
    digits = re.match(r"\d{1,3}", str(cell.get(name, "1")).strip())
    return min(max(int(digits[0]), 1), _LARGEST["rows"]) if digits else 1
