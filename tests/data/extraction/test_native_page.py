"""The native pass over a page: equal to the passes in Python, to the last bit of the scores."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from openafm.core.native_build import NativeBuildError, NativeSources
from openafm.data.extraction import ExtractionConfig, native_page
from openafm.data.extraction.blocks import PageBlocks, split_blocks
from openafm.data.extraction.classifier import shipped_classifier
from openafm.data.extraction.dom import parse
from openafm.data.extraction.extractor import Extractor
from openafm.data.extraction.native_page import PageReader, open_reader
from openafm.data.sites import SiteConfig
from openafm.data.web.documents import Page

PROSE = "<p>" + "One sentence of a page, with commas; and more. " * 6 + "</p>"
PAGES = {
    "nothing": "",
    "white space": "<p>\u00a0\u2003</p> \n<div>\x1c</div>\u3000",
    "text without elements": "a \u00a0 b\u2028c\t\u85d0",
    "inline markup over blocks": "<b>one<p>two <i>three</p><p>four</i> five</b> <a href='/x'>six<div>seven</div></a> eight",
    "links": "<p>a <a href='#'>b <b>c</b></a><a>no target</a><a href=''>d</a> é<a href='https://e.example/?q=ü'>ü</a></p>",
    "names": "<div class='article-body contentMain Sidebar-left' id='main' role='main'><p itemprop='articleBody'>a</p></div>"
    "<div class='ABc aBC xArticle entry-content' ID=x><p class='ſhare éntry post-text'>b</p></div>"
    + f"<p class='{'é' * 199}nav'>c",
    "hidden": "<div style='DISPLAY : none'>a</div><div style='visibility:hidden'>b</div><div hidden>c</div>"
    "<div aria-hidden=true>d</div><div aria-hidden=false>e</div><div style='display:block; x: none'>f</div>",
    "code": "<article><pre>\n  a\n\tb <b>c</b></pre><pre> </pre><p><code>d</code><kbd></kbd>" + PROSE,
    "breaks": "<p>a<br>b<br><br>c</p><br><br><td>d</td>",
    "images": "<p>a<img src='data:x' data-src='/b.png' alt=' c \n d '><img src=e.png><img><img src=''></p><p>f</p>",
    "tables": "<table><tr><th>a<td>b<tr><td>c<td>d</table>" + PROSE,
    "skipped": "<nav>a</nav>b<footer>c</footer>d<script>e</script>f<button>g</button>h<noscript>i</noscript><svg><p>j</svg>",
    "unknown elements": "<content>a<post>b</post></content><noindex>c</noindex><x-y>d<p>e</p></x-y><search>f</search>",
    "headings": "<h1>a</h1><h2>b</h2>" + PROSE * 3 + "<h1>c</h1>",
    "deep": "<div>" * 300 + "a<p>b" + PROSE,
    "signs of all classes": "<p>1²٣ a,b;c:d，e、f；g： |»›©→•·/#@+ h. i? j! k… l。m！n？ o\" p' q” r» s) t: 😀. 😀</p>",
    "long block": "<p>" + "word. " * 15_000 + "</p>" + PROSE,
    "null and references": "<p>a\x00b&#0;c&nbsp;d&#xD800;e&#x1F600;</p>",
    "formulas": "<p>a<math alttext=' x^2 '><mi>x</mi></math>b<math><mi> y </mi><mo>=</mo></math><math alttext=''></math></p>"
    "<p>c<math><semantics><mi>z</mi><annotation encoding='application/x-tex'> z_1 </annotation></semantics></math>"
    "<math><annotation encoding='text'>u</annotation><annotation encoding='tex'> </annotation><mi>v</mi></math></p>",
    "comments": "<!-- a --><p>b<!-- c -->d</p><!-- e -->",
}

DAMAGE = (
    "<p>",
    "</p>",
    "<div class='",
    "'>",
    "<td>",
    "</table>",
    "<math>",
    "<pre>",
    "\x00",
    "&#x110000;",
    "<a href='",
    "<svg>",
)
DAMAGE += (
    "<template>",
    "<select><option>",
    "<img src=",
    "\ud7ff",
    "<!--",
    "]]>",
    "<frameset>",
    "<body class=x>",
    "<plaintext>",
)


@pytest.fixture(scope="module")
def reader() -> PageReader:
    found = open_reader(shipped_classifier())
    if found is None:
        pytest.skip("no C++ compiler, or a selectolax that hides Lexbor's interface")
    return found


def as_values(page: PageBlocks) -> dict[str, Any]:
    """All that a page has, as comparable values."""
    blocks = [
        (b.container, b.raw, b.text, b.link_chars, b.num_links, b.num_breaks, list(b.spans), b.preformatted)
        for b in page.blocks
    ]
    names = ("parents", "tags", "bits", "inherited", "depths", "names", "stops")
    numbers = ("container_of", "num_chars", "link_chars", "num_links")
    return {
        "blocks": blocks,
        "images": page.images,
        **{name: list(getattr(page.containers, name)) for name in names},
        **{f"array {name}": getattr(page, name).tolist() for name in numbers},
    }


def check_equal(reader: PageReader, html: str) -> None:
    root = parse(html.encode())
    assert root is not None
    found = reader.read(root, len(html), 20_000)
    assert found is not None
    expected = split_blocks(root)
    assert as_values(found.blocks) == as_values(expected)
    np.testing.assert_array_equal(found.scores, shipped_classifier().scores(expected))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_that_of_python(reader: PageReader, name: str) -> None:
    check_equal(reader, PAGES[name])


def test_generated_pages_are_those_of_python(reader: PageReader) -> None:
    pages = SiteConfig(seed=5, num_pages=40, script_share=0.0).build().pages.values()
    for page in pages:
        check_equal(reader, page.html.decode("utf-8", "replace"))


def test_damaged_pages_are_those_of_python(reader: PageReader) -> None:
    """Cut, repeated and spliced pages; 39,946 of them were equal once."""
    rng, pages = random.Random(1), list(PAGES.values())
    for _ in range(300):
        html = rng.choice(pages)[:3000]
        for _ in range(rng.randint(1, 12)):
            first, last = sorted((rng.randrange(len(html) + 1), rng.randrange(len(html) + 1)))
            inserted = rng.choice([*DAMAGE, rng.choice(pages)[:400]])
            html = rng.choice(
                [html[:first] + inserted + html[first:], html[:first] + html[last:], html[:last] + html[first:]]
            )
        check_equal(reader, html[:20_000])


def test_a_page_with_too_many_blocks_is_cut_at_the_same_place(reader: PageReader) -> None:
    root = parse(b"<div><p>a</p><p>b</p></div>" * 20)
    assert root is not None
    found = reader.read(root, 100, 7)
    assert found is not None
    assert len(found.blocks.blocks) < 20
    assert as_values(found.blocks) == as_values(split_blocks(root, 7))


def test_huge_pages_are_left_to_python(reader: PageReader) -> None:
    root = parse(PROSE.encode())
    assert root is not None
    assert reader.read(root, 1 << 30, 20_000) is None


def test_threads_read_with_one_reader(reader: PageReader) -> None:
    pages = [f"<div class='word{chr(97 + index)}x article'>{PROSE * (index + 1)}</div>" for index in range(16)]
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda html: check_equal(reader, html), pages * 4):
            pass


def test_without_a_compiler_python_extracts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: NativeSources) -> None:
        raise NativeBuildError("no C++ compiler")

    page = Page(url="https://a.example/", body=f"<h1>Title</h1>{PROSE * 4}<pre>x = 1</pre>".encode())
    expected = ExtractionConfig().build().extract(page)
    native_page._libraries.cache_clear()
    monkeypatch.setattr(NativeSources, "built", fails)
    extractor: Extractor = ExtractionConfig().build()
    native_page._libraries.cache_clear()
    assert extractor._reader is None
    assert extractor.extract(page) == expected
