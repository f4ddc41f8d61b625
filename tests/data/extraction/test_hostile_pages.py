"""Pages that are broken, hostile or not HTML: a typed drop or a document, in bounded time, and no exception."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openafm.data.extraction import DROP_REASONS, ExtractionConfig
from openafm.data.extraction.blocks import split_blocks
from openafm.data.extraction.dom import decode, parse, to_utf8
from openafm.data.web.documents import Dropped, Page, WebDocument

EXTRACTOR = ExtractionConfig(max_bytes=4 << 20).build()
TEXT = "Ein Absatz über Käse, Brot und Äpfel, der lang genug ist, um als Text zu gelten. " * 6
# fmt: off
PIECES = (
    b"<p>", b"</p>", b"<div class='content'>", b"</div>", b"<a href='//[x'>", b"</a>", b"<table><tr><td>", b"</table>",
    b"<li>", b"<ol>", b"</ol>", b"<pre>", b"<img src=x>", b"<img src='http://[::1'>", b"<br>", b"<math>", b"</math>",
    b"<!--", b"-->", b"<![CDATA[", b"<svg>", b"<b>", b"</b>", b"&#0;", b"&#xD800;", b"\x00", b"\xff\xfe", b"\xed\xa0\x80",
    b"text, more. ", b"<script type='application/ld+json'>{\"@type\": \"Article\"", b"</script>", b"<html lang='", b"'>",
    b"<meta charset=utf-7>",
)
# fmt: on
MARKUP = st.lists(
    st.sampled_from(PIECES) | st.binary(max_size=12),
    max_size=60,
).map(b"".join)


def reason(body: bytes, content_type: str = "text/html", status: int = 200) -> str:
    result = EXTRACTOR.extract(
        Page(url="https://example.org/", body=body, headers={"content-type": content_type}, status=status)
    )
    return result.reason if isinstance(result, Dropped) else ""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    body=MARKUP, content_type=st.sampled_from(["text/html", "text/html; charset=x-unknown", "text/html; charset=shift_jis"])
)
def test_no_bytes_raise(body: bytes, content_type: str) -> None:
    result = EXTRACTOR.extract(Page(url="https://example.org/[", body=body, headers={"content-type": content_type}))
    if isinstance(result, Dropped):
        assert result.reason in DROP_REASONS
    else:
        assert isinstance(result, WebDocument)
        result.text.encode()
        assert all(0 <= media.offset <= len(result.text) for media in result.media)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "expected"),
    [
        (b"", "text/html", 200, "empty"),
        (b" \n\t", "text/html", 200, "empty"),
        (b"<p>x</p>", "text/html", 404, "http_status"),
        (b"<p>x</p>", "application/pdf", 200, "not_html"),
        (b"%PDF-1.7 <p>x</p>", "text/html", 200, "not_html"),
        (b"\x89PNG\r\n\x1a\n", "", 200, "not_html"),
        (b"plain words without any element", "text/html", 200, "not_html"),
        (b"<p>" + b"x" * (5 << 20), "text/html", 200, "too_large"),
        (b"<html><body></body></html>", "text/html", 200, "no_text"),
        (b"<p>a</p>" * 30_000, "text/html", 200, "too_many_blocks"),
        (b"<script>" + b"x" * 1000 + b"</script>", "text/html", 200, "no_text"),
    ],
)
def test_drops_have_a_reason(body: bytes, content_type: str, status: int, expected: str) -> None:
    assert reason(body, content_type, status) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 200_000 + b"text",
        b"<b>" * 100_000 + TEXT.encode(),
        b"<table><tr><td>" * 20_000 + b"x",
        b"<ul><li>" * 20_000 + b"x",
        b"<p>" + b"<a href='x'>y</a>" * 60_000,
        b"<p class='" + b"a-b " * 200_000 + b"'>x",
        b"<" * 1_000_000,
        b"<a " * 300_000,
        b"<p>" + b"&amp;" * 400_000,
        b"<div>x" * 5000,
        b"".join(b"<p><b id=%d>x" % number for number in range(6000)),
        b"<b><i><u><s><em><tt>" * 3 + b"<p>x" * 60_000,
    ],
    ids=["div", "b", "table", "list", "links", "class", "open", "attributes", "entities", "nested", "formats", "repeated"],
)
def test_hostile_pages_take_bounded_time(body: bytes) -> None:
    start = time.process_time()
    reason(body)
    assert time.process_time() - start < 20


def test_a_page_that_is_rewritten_before_it_is_parsed_keeps_its_blocks() -> None:
    body = "".join(f"<p>Käse {number} <b>&amp;</b> Brot" for number in range(6000)).encode()
    root = parse(body)
    assert root is not None
    assert [block.text for block in split_blocks(root).blocks] == [f"Käse {number} & Brot" for number in range(6000)]


def test_a_page_with_too_many_blocks_is_cut() -> None:
    root = parse(b"<p>a</p>" * 100)
    assert root is not None
    assert 10 < len(split_blocks(root, 10).blocks) < 15


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (TEXT.encode(), ""),
        (TEXT.encode("utf-8-sig"), "text/html; charset=iso-8859-1"),
        (TEXT.encode("windows-1252"), "text/html; charset=windows-1252"),
        (TEXT.encode("utf-16"), ""),
        (b'<meta charset="iso-8859-1">' + TEXT.encode("iso-8859-1"), ""),
    ],
)
def test_encodings_are_decoded(body: bytes, content_type: str) -> None:
    assert "Käse, Brot und Äpfel" in decode(body, content_type)
    assert to_utf8(body, content_type).decode() == decode(body, content_type)


def test_invalid_bytes_become_replacement_characters() -> None:
    assert "\ufffd" in decode(b"<p>a \xff b \xc3\x28</p>", "text/html; charset=utf-8")
