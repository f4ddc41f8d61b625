"""Tables laid out as HTML by Chromium: the layout of the web, with the box of each word's ink."""

from __future__ import annotations

import asyncio
import html
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from openafm.data.drawing.choices import DrawingFailedError
from openafm.data.drawing.fonts import Font
from openafm.data.drawing.tables.layout import TableStyle
from openafm.data.images.documents import Region
from openafm.data.rendering.browser import Browser
from openafm.data.rendering.config import RenderConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MARGIN = 3
_WIDTH, _HEIGHT = 1000, 1400
_CSS = """
body {{ margin: 0; background: {background}; color: {ink}; font: {size}px '{family}'; }}
#all {{ display: inline-block; padding: {margin}px; }}
h1 {{ font-size: 1.3em; margin: 0 0 0.6em; }}
table {{ border-collapse: {collapse}; border-spacing: 2px; max-width: {width}px; }}
th {{ background: {header}; color: {header_ink}; text-align: {align}; }}
th, td {{ padding: {pad_y}px {pad_x}px; {border} {radius} }}
tr:nth-child(even) td {{ background: {stripe}; }}
td.number {{ text-align: {numbers}; }}
.bare, .bare * {{ color: transparent !important; }}
"""
# Words of text nodes; a word that is broken over lines has one entry for each line.
_WORDS = """() => {
  const words = [], walker = document.createTreeWalker(document.getElementById('all'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    for (const match of node.data.matchAll(/\\S+/g)) {
      let last = null;
      for (let at = match.index; at < match.index + match[0].length; at++) {
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        const box = range.getBoundingClientRect();
        if (last && Math.abs(last.top - box.top) < 2) {
          last.text += node.data[at]; last.right = Math.max(last.right, box.right);
        } else {
          last = {text: node.data[at], kind: node.parentElement.tagName, left: box.left, top: box.top,
                  right: box.right, bottom: box.bottom};
          words.push(last);
        }
      }
    }
  }
  return words;
}"""
_KINDS = {"H1": "title", "TH": "header"}


@dataclass(frozen=True)
class RenderedTable:
    """Pixels `[height, width, 3]`, and the words with the boxes of their ink."""

    pixels: NDArray[np.uint8]
    regions: tuple[Region, ...]


class ChromiumTables:
    """Renders tables, one after another, in one browser without network. `close` ends it.

    Raises:
        RenderingUnavailableError: Playwright or Chromium is not installed, or Chromium does not start.
    """

    def __init__(self) -> None:
        self._browser = Browser(RenderConfig(concurrency=1))
        self._loop = asyncio.new_event_loop()

    def render(self, page_html: str) -> RenderedTable:
        """Return a page with the words of the element `all`."""
        return self._loop.run_until_complete(self._render(page_html))

    def plain(self, page_html: str) -> NDArray[np.uint8]:
        """Return the pixels of a page without its text."""
        return self._loop.run_until_complete(self._plain(page_html))

    def close(self) -> None:
        """End the browser."""
        self._loop.run_until_complete(self._browser.stop())
        self._loop.close()

    async def _render(self, page_html: str) -> RenderedTable:
        page = await self._open(page_html)
        words = await page.evaluate(_WORDS)
        pixels = await self._picture(page)
        ink = np.any(pixels != await self._without_text(page), axis=2)
        regions = []
        for word in words:
            box = _ink_box(ink, word)
            if box is None:
                raise DrawingFailedError(f"the word {word['text']!r} is not visible")
            regions.append(Region(label=word["text"], box=box, kind=_KINDS.get(word["kind"], "cell")))
        return RenderedTable(pixels, tuple(regions))

    async def _plain(self, page_html: str) -> NDArray[np.uint8]:
        return await self._without_text(await self._open(page_html))

    async def _open(self, page_html: str) -> Any:
        page = await self._browser.page()
        await page.set_viewport_size({"width": _WIDTH, "height": _HEIGHT})
        await page.set_content(page_html)
        return page

    async def _without_text(self, page: Any) -> NDArray[np.uint8]:
        await page.evaluate("() => document.getElementById('all').classList.add('bare')")
        return await self._picture(page)

    async def _picture(self, page: Any) -> NDArray[np.uint8]:
        from PIL import Image

        box = await page.evaluate(
            "() => { const box = document.getElementById('all').getBoundingClientRect(); return [box.width, box.height]; }"
        )
        width, height = (min(int(value) + 1, limit) for value, limit in zip(box, (_WIDTH, _HEIGHT), strict=True))
        data = await page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": height}, animations="disabled")
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def table_html(
    rng: random.Random,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    style: TableStyle,
    font: Font,
    numeric: Sequence[bool],
) -> str:
    """Return a table as an HTML page in a random style of a design."""
    look = style.look
    border = {
        "grid": f"border: 1px solid {look.rule};",
        "rows": f"border-bottom: 1px solid {look.rule};",
        "header": "",
        "outer": f"border: 1px dotted {look.rule};",
        "none": "",
    }[look.rules]
    css = _CSS.format(
        background=look.background,
        ink=look.ink,
        size=style.size,
        family=font.family,
        margin=rng.randint(8, 24),
        width=rng.choice((520, 640, 800)),
        collapse=rng.choice(("collapse", "collapse", "separate")),
        header=look.header or look.background,
        header_ink=look.header_ink,
        align=rng.choice(("left", "center")),
        pad_x=style.padding[0],
        pad_y=style.padding[1],
        border=border,
        radius=f"border-radius: {rng.choice((0, 0, 3, 6))}px;",
        stripe=look.stripe or look.background,
        numbers=style.align_numbers,
    )
    heads = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=number' if is_number else ''}>{html.escape(cell)}</td>"
            for cell, is_number in zip(row, numeric, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    heading = f"<h1>{html.escape(title)}</h1>" if title else ""
    return (
        f"<!doctype html><meta charset=utf-8><style>{css}</style>"
        f"<div id=all>{heading}<table><tr>{heads}</tr>{body}</table></div>"
    )


def _ink_box(ink: NDArray[np.bool_], word: dict[str, Any]) -> tuple[float, float, float, float] | None:
    """Return the box of the ink inside a word's box; None if there is none."""
    height, width = ink.shape
    # Only half a pixel beside a word, where the next word begins; more above and below, where marks of letters may be.
    left, right = max(int(word["left"]) - 1, 0), min(int(word["right"]) + 2, width)
    top, bottom = max(int(word["top"]) - _MARGIN, 0), min(int(word["bottom"]) + _MARGIN, height)
    part = ink[top:bottom, left:right]
    rows, columns = np.flatnonzero(part.any(axis=1)), np.flatnonzero(part.any(axis=0))
    if not len(rows):
        return None
    return (float(left + columns[0]), float(top + rows[0]), float(left + columns[-1] + 1), float(top + rows[-1] + 1))
