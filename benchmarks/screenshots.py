"""Words of real pages: screenshots of HTML documents that were not made for this project.

Chromium shows a few documents of each folder below `--pages`, by default of each package that brings manuals. The truth are
the words that are wholly in the window, as the browser places them. Pages with few words, with letters that are not ASCII,
or like an earlier page are left out. Ours and tesseract read the same PNG files; typographic quotes of tesseract count as
those of ASCII.

    words_found               share of the words of the pages that the reader of the model found, as they are written
    words_right               share of the words which the reader found that are of the truth; marks of lists and words that
                              are partly visible are not, for both
    tesseract_words_found, tesseract_words_right
    ratio                     words_found / tesseract_words_found

    python benchmarks/screenshots.py [--bundle NAME] [--pages FOLDER] [--count N] [--image-detail MODE] [--quick] [--json]

A full run (40 pages or as many as there are, 3 s each) writes docs/benchmarks/screenshots.json.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

os.environ["OMP_NUM_THREADS"] = os.environ["OMP_THREAD_LIMIT"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from playwright.sync_api import ViewportSize, sync_playwright
from shared.reporting import benchmark_parser, hand_in

from openafm.bundle import open_bundle, shipped_bundle
from openafm.data.rendering.browser import find_executable
from openafm.data.rendering.config import RenderConfig
from openafm.framework.options import ImageDetail
from openafm.reading.page import DEFAULT_DETAIL, open_reader

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "screenshots.json"
PAGES = Path("/usr/share/doc")
WINDOW = ViewportSize(width=900, height=700)
MOST_OF_FOLDER, LEAST_WORDS, MOST_COMMON = 4, 40, 0.6
QUOTES = str.maketrans("’‘“”—–", "''\"\"--")
WORDS = """() => {
    const words = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (!node.parentElement.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        for (const match of node.data.matchAll(/\\S+/g)) {
            const range = document.createRange();
            range.setStart(node, match.index);
            range.setEnd(node, match.index + match[0].length);
            const boxes = [...range.getClientRects()];
            if (boxes.length === 1 && boxes[0].width > 1 && boxes[0].top >= 0 && boxes[0].left >= 0
                && boxes[0].bottom <= innerHeight && boxes[0].right <= innerWidth) words.push(match[0]);
        }
    }
    return words;
}"""
"""A word that is split over two elements counts as two."""


def documents(folder: Path) -> Iterator[Path]:
    """Yield a few HTML documents of each folder in `folder`, in the order of their names."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.html")):
        groups.setdefault(path.relative_to(folder).parts[0], []).append(path)
    for paths in groups.values():
        yield from paths[:: -(-len(paths) // MOST_OF_FOLDER)]


def pages(folder: Path, count: int) -> Iterator[tuple[str, bytes, list[str]]]:
    """Yield the names, screenshots and words of documents without connections to the network."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_executable(RenderConfig()), args=["--no-sandbox"])
        context = browser.new_context(viewport=WINDOW, offline=True, java_script_enabled=True)
        page, found = context.new_page(), list[Counter[str]]()
        for path in documents(folder):
            page.goto(path.resolve().as_uri(), wait_until="load")
            words = page.evaluate(WORDS)
            is_like_another = any((Counter(words) & other).total() > MOST_COMMON * len(words) for other in found)
            if len(words) >= LEAST_WORDS and all(word.isascii() for word in words) and not is_like_another:
                found.append(Counter(words))
                yield path.relative_to(folder).parts[0], page.screenshot(), words
            if len(found) == count:
                break
        browser.close()


def tesseract_words(image: bytes) -> list[str]:
    command = ["tesseract", "stdin", "stdout", "-l", "eng"]
    found = subprocess.run(command, input=image, capture_output=True, check=True).stdout.decode()
    return found.translate(QUOTES).split()


def num_common(words: Sequence[str], found: Sequence[str]) -> int:
    return (Counter(words) & Counter(found)).total()


def measure(reader_folder: Path, bundle: str, folder: Path, count: int, detail: ImageDetail) -> dict[str, Any]:
    reader = open_reader(reader_folder)
    contestants = {"": lambda image: reader.read(image, detail).text.split(), "tesseract_": tesseract_words}
    rows, totals = [], {name: Counter[str]() for name in contestants}
    for name, image, words in pages(folder, count):
        row: dict[str, Any] = {"page": name, "words": len(words)}
        for contestant, read in contestants.items():
            found = read(image)
            common = num_common(words, found)
            totals[contestant].update(common=common, words=len(words), found=len(found))
            row[f"{contestant}words_found"] = round(common / len(words), 3)
        rows.append(row)
    figures: dict[str, Any] = {"rows": rows, "words": totals[""]["words"]}
    for name, total in totals.items():
        figures[f"{name}words_found"] = round(total["common"] / max(total["words"], 1), 4)
        figures[f"{name}words_right"] = round(total["common"] / max(total["found"], 1), 4)
    figures["ratio"] = round(figures["words_found"] / max(figures["tesseract_words_found"], 1e-9), 3)
    setting = {"bundle": bundle, "pages": len(rows), "window": [WINDOW["width"], WINDOW["height"]], "image_detail": detail}
    return {"benchmark": "screenshots", "peer": "tesseract", "setting": setting, "figures": figures}


def main() -> None:
    parser = benchmark_parser(__doc__, "few pages; claims nothing")
    parser.add_argument("--bundle", help="a model with a reader of pages, by name or path; default: the shipped one")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder with HTML documents")
    parser.add_argument("--count", type=int, help="pages to read")
    parser.add_argument("--image-detail", choices=get_args(ImageDetail), default=DEFAULT_DETAIL)
    options = parser.parse_args()
    found = options.bundle or shipped_bundle()
    if found is None or (reader := open_bundle(found).reader) is None:
        parser.error("this model has no reader of pages; pass --bundle")
    name, count = open_bundle(found).name, options.count or (3 if options.quick else 40)
    hand_in(measure(reader, name, options.pages, count, options.image_detail), REPORT, options)


if __name__ == "__main__":
    main()
