"""Blocks of a DOM and their Markdown."""

from __future__ import annotations

from urllib.parse import urljoin

import pytest

from openafm.data.extraction.blocks import PageBlocks, split_blocks
from openafm.data.extraction.dom import parse
from openafm.data.extraction.markdown import MarkdownText, joined, write_markdown

URL = "https://example.org/a/page.html"


def blocks_of(html: str) -> PageBlocks:
    root = parse(html.encode())
    assert root is not None
    return split_blocks(root)


def markdown(html: str, *, links: bool = True, structure: bool = True) -> MarkdownText:
    page = blocks_of(f"<html><body>{html}</body></html>")
    return write_markdown(page, [True] * len(page.blocks), URL, links=links, structure=structure)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<h2>A <b>title</b></h2><p>Text.</p>", "## A **title**\n\nText."),
        ("<p>See <a href='../b'> this  page </a>, <em>now</em>.</p>", "See [this page](https://example.org/b) , *now*."),
        ("<p>a<br>b</p>", "a\nb"),
        ("<pre><code>if x:\n    y &lt; 1</code></pre>", "```\nif x:\n    y < 1\n```"),
        ("<ul><li>one</li><li>two<ul><li>inner</li></ul></li></ul>", "- one\n\n- two\n\n  - inner"),
        ("<ol><li>one</li><li><p>two</p><p>more</p></li></ol>", "1. one\n\n2. two\n\n   more"),
        ("<blockquote><p>said</p></blockquote>", "> said"),
        ("<dl><dt>term</dt><dd>text</dd></dl>", "term\n\n: text"),
        (
            "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2 | 3</td></tr></table>",
            "| a | b |\n| --- | --- |\n| 1 | 2 \\| 3 |",
        ),
        ("<table><tr><td>layout</td></tr></table>", "layout"),
        (
            "<p>So <math><mi>x</mi><annotation encoding='application/x-tex'>x^2</annotation></math>.</p>",
            "So $x^2$ .",
        ),
        ("<div>loose <p>para</p> tail</div>", "loose\n\npara\n\ntail"),
    ],
)
def test_structure_becomes_markdown(html: str, expected: str) -> None:
    assert markdown(html).text == expected


def test_plain_lines_have_no_marks() -> None:
    html = "<h2>Title</h2><ul><li><a href='/x'>one</a></li></ul>"
    assert markdown(html, structure=False).text == "Title\n\none"
    assert markdown(html, links=False).text == "## Title\n\n- one"


def test_media_have_absolute_urls_captions_and_offsets() -> None:
    html = (
        "<nav><img src='logo.png' alt='logo'></nav><p>First.</p><figure><img src='/i.png' alt=' A  cat '>"
        "<figcaption>The cat.</figcaption></figure><p>Second.</p><img src='data:image/png;base64,AA'>"
    )
    result = markdown(html)
    assert [(item.url, item.alt, item.caption) for item in result.media] == [
        ("https://example.org/i.png", "A cat", "The cat.")
    ]
    assert result.text[result.media[0].offset :].startswith("The cat.")


def test_lazy_images_have_the_address_behind_their_placeholder() -> None:
    result = markdown("<p>First.</p><img src='data:image/png;base64,AA' data-src='/i.png' alt='A cat'><p>Second.</p>")
    assert [item.url for item in result.media] == ["https://example.org/i.png"]


def test_skipped_elements_and_links_are_not_text() -> None:
    page = blocks_of(
        "<body><script>x()</script><p>a <a href='/'>link</a></p><style>p{}</style><noscript>no</noscript></body>"
    )
    assert [(block.text, block.link_chars, block.num_links) for block in page.blocks] == [("a link", 4, 1)]


def test_containers_know_names_and_hidden_elements() -> None:
    page = blocks_of("<body><div class='post-content' id='x'><p style='display: none'>a</p></div></body>")
    containers, container = page.containers, page.blocks[0].container
    parent = containers.parents[container]
    assert containers.tags[container] == "p"
    assert containers.names[parent].split() == ["post-content", "x"]
    assert containers.inherited[container] != containers.inherited[parent]


def test_a_link_around_blocks_counts_in_each() -> None:
    page = blocks_of("<a href='/x'><div>one</div><div>two <b>more</b></div></a><p>rest</p>")
    assert [(block.text, block.link_chars) for block in page.blocks] == [("one", 3), ("two more", 8), ("rest", 0)]
    assert markdown("<a href='/x'><div>one</div></a>").text == "[one](https://example.org/x)"


def test_an_image_between_blocks_that_are_left_out_stands_before_the_next_chosen_one() -> None:
    page = blocks_of("<p>First.</p><img src='/i.png'><p>out</p><p>out</p><p>Last.</p>")
    result = write_markdown(page, [True, False, False, True], URL, links=False)
    assert [result.text[media.offset :] for media in result.media] == ["Last."]
    result = write_markdown(page, [True, False, False, False], URL, links=False)
    assert [media.offset for media in result.media] == [len("First.")]


@pytest.mark.parametrize(
    "base", ["https://a.example/b/c?d#e", "http://a.example:80/", "https://A.example/b", "ftp://a/b", ""]
)
def test_urls_are_joined_as_urljoin_does(base: str) -> None:
    parts = (
        "",
        "/",
        "//",
        "/x",
        "/./x",
        "/../x",
        "/x/.",
        "/.x",
        "/x;y",
        "/x?",
        "/x?y",
        "/x#",
        "/x#y",
        "?y",
        "#y",
        "/é",
        "/x y",
    )
    hosts = (
        "",
        "https://h.example",
        "HTTPS://h.example",
        "http://h.example:80",
        "//h.example",
        "mailto:x",
        " https://h.example",
    )
    for url in (host + part for host in hosts for part in (*parts, "x", "../x", "/x//y", "/x?y?z", "/\tx")):
        assert joined(base, url) == urljoin(base, url.strip()).replace(" ", "%20")
