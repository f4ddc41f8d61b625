"""WARC files: what is written is read back, by this reader and by warcio; cut and damaged files."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from openafm.core.files import OutOfSpaceError
from openafm.data.web.documents import Dropped, Page
from openafm.data.web.warc import Capture, WarcWriter, capture_bytes, warc_files
from openafm.data.web.warc_reader import read_pages, recover

TRAILER = 14  # bytes of a gzip member after the last byte of a record
AT = "2026-01-02T03:04:05+00:00"


def page(number: int, **changes: object) -> Page:
    values: dict[str, object] = {
        "url": f"https://example.com/ü/{number}",
        "body": f"<p>Text {number}</p>".encode() * 50,
        "headers": {"content-type": "text/html; charset=utf-8", "content-encoding": "gzip", "x-robots-tag": "a: noai\nall"},
        "fetched_at": AT,
    }
    return Page(**(values | changes))  # type: ignore[arg-type]


def write(folder: Path, *captures: Capture) -> Path:
    with WarcWriter(folder, description={"user-agent": "test"}) as writer:
        for capture in captures:
            writer.write(capture)
    return warc_files(folder)[0]


def test_pages_are_read_back(tmp_path: Path) -> None:
    denied = "Applebot-Extended: robots.txt line 2: Disallow: /ä\n"
    path = write(
        tmp_path,
        Capture(page=page(1), ip="192.0.2.1", request_headers={"user-agent": "test"}),
        Capture(page=page(2, opt_out=denied, status=404)),
        Capture(page=page(3), dom=b"<p>rendered</p>", screenshot=b"\x89PNG"),
        Capture(page=page(4, status=304, body=b"")),
    )
    first, second, third = (each for each in read_pages(path) if isinstance(each, Page))
    assert (first.url, first.body, first.status) == (page(1).url, page(1).body, 200)
    assert first.content_type == "text/html; charset=utf-8"
    assert first.headers["x-robots-tag"] == "a: noai\nall"
    assert first.fetched_at.startswith("2026-01-02T03:04:05")
    assert (first.opt_out, first.rendered) == ("", False)
    assert (second.opt_out, second.status) == (denied, 404)
    assert (third.body, third.rendered) == (b"<p>rendered</p>", True)


def test_warcio_reads_the_file_and_its_digests(tmp_path: Path) -> None:
    archive = pytest.importorskip("warcio.archiveiterator")
    path = write(tmp_path, Capture(page=page(1), dom=b"<p>rendered</p>", screenshot=b"\x89PNG"))
    with path.open("rb") as file:
        records = [
            (record.rec_type, record.rec_headers.get_header("WARC-Target-URI"), record.content_stream().read())
            for record in archive.ArchiveIterator(file, check_digests="raise")
        ]
    assert [kind for kind, _, _ in records] == ["warcinfo", "request", "resource", "resource", "response"]
    assert records[-1][2] == page(1).body
    assert records[-2][1] == f"urn:dom:{page(1).url}"


def test_fastwarc_verifies_all_digests(tmp_path: Path) -> None:
    from fastwarc.warc import ArchiveIterator

    path = write(tmp_path, Capture(page=page(1), dom=b"<p>rendered</p>"))
    records = [
        (record.verify_block_digest(), record.headers["WARC-Type"]) for record in ArchiveIterator(path, parse_http=False)
    ]
    assert records == [(True, kind) for kind in ("warcinfo", "request", "resource", "response")]


def test_every_cut_gives_the_pages_before_it(tmp_path: Path) -> None:
    path = write(tmp_path, *(Capture(page=page(number)) for number in range(3)))
    data = path.read_bytes()
    ends = []
    for number in range(3):
        ends.append(len(data) - sum(len(each) for each in _groups(data)[number + 1 :]))
    for cut in range(ends[0], len(data), 7):
        path.write_bytes(data[:cut])
        found = list(read_pages(path))
        pages = [each.url for each in found if isinstance(each, Page)]
        assert pages == [page(number).url for number in range(len(pages))], cut
        assert sum(end <= cut for end in ends) <= len(pages) <= sum(end - TRAILER <= cut for end in ends), cut
        reasons = [each.reason for each in found if isinstance(each, Dropped)]
        assert reasons == ([] if cut in _record_ends(data) else ["warc_cut"]), cut


def _record_ends(data: bytes) -> set[int]:
    from fastwarc.warc import ArchiveIterator

    return {record.stream_pos for record in ArchiveIterator(io.BytesIO(data))} | {len(data)}


def _groups(data: bytes) -> list[bytes]:
    """The bytes of each capture: from its request to the next."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    starts = [record.stream_pos for record in ArchiveIterator(io.BytesIO(data), record_types=WarcRecordType.request)]
    return [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def test_a_damaged_file_gives_the_pages_before_the_damage(tmp_path: Path) -> None:
    path = write(tmp_path, *(Capture(page=page(number)) for number in range(3)))
    data = bytearray(path.read_bytes())
    data[len(data) - len(_groups(bytes(data))[-1]) + 30] ^= 0xFF
    path.write_bytes(data)
    found = list(read_pages(path))
    assert [each.url for each in found if isinstance(each, Page)] == [page(0).url, page(1).url]
    assert isinstance(found[-1], Dropped)
    assert found[-1].reason == "warc_cut"


def foreign(block: bytes, **headers: str) -> bytes:
    """A plain record, as another crawler writes it."""
    lines = {"WARC-Type": "response", "WARC-Target-URI": "http://e.com/", "Content-Type": "application/http"} | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"WARC/1.0\r\n{head}Content-Length: {len(block)}\r\n\r\n".encode() + block + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"", b"hello"),
        (b"Content-Encoding: gzip\r\n", gzip.compress(b"hello", mtime=0)),
        (b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
        (b"Content-Encoding: deflate\r\n", b"\x78\x9c\xcbH\xcd\xc9\xc9\x07\x00\x06,\x02\x15"),
        (b"Content-Encoding: deflate\r\n", b"\xcbH\xcd\xc9\xc9\x07\x00"),
    ],
)
def test_encoded_bodies_of_other_crawlers(tmp_path: Path, headers: bytes, body: bytes) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(foreign(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n" + body))
    assert [each.body for each in read_pages(path) if isinstance(each, Page)] == [b"hello"]


def test_opt_outs_of_other_crawlers_come_from_the_page(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(foreign(b'HTTP/1.1 200 OK\r\n\r\n<meta name="robots" content="noai">'))
    assert [each.opt_out for each in read_pages(path) if isinstance(each, Page)] == ["meta robots: noai"]


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000, "too_large"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(bytes(10_000_000)), "too_large"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nhello", "warc_damaged"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: rot13\r\n\r\nhello", "warc_damaged"),
        (b"no HTTP", "warc_damaged"),
    ],
)
def test_a_bad_record_costs_itself_only(tmp_path: Path, block: bytes, reason: str) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(foreign(block) + foreign(b"HTTP/1.1 200 OK\r\n\r\nhello"))
    bad, good = read_pages(path, max_body_bytes=20_000 if block.endswith(b"\x00\x00") else 1000)
    assert isinstance(bad, Dropped)
    assert (bad.reason, bad.url) == (reason, "http://e.com/")
    assert isinstance(good, Page)


def test_recover_keeps_complete_captures(tmp_path: Path) -> None:
    path = write(tmp_path, Capture(page=page(1)))
    noted = path.stat().st_size
    whole = capture_bytes(Capture(page=page(2)))
    whole += capture_bytes(Capture(page=page(5, status=304, body=b"")))
    path.write_bytes(path.read_bytes() + whole + capture_bytes(Capture(page=page(3)))[:-1])
    assert [(each.url, each.status) for each in recover(path, noted)] == [(page(2).url, 200), (page(5).url, 304)]
    assert path.stat().st_size == noted + len(whole)
    assert recover(path, path.stat().st_size) == []


def test_files_rotate_and_are_continued(tmp_path: Path) -> None:
    with WarcWriter(tmp_path, max_bytes=100) as writer:
        places = [writer.write(Capture(page=page(number))) for number in range(3)]
    assert [place.file for place in places] == [f"crawl-0000{number}.warc.gz" for number in (1, 2, 3)]
    with WarcWriter(tmp_path) as writer:
        place = writer.write(Capture(page=page(4)))
    assert (place.file, place.start) == (places[-1].file, places[-1].end)
    assert [each.url for path in warc_files(tmp_path) for each in read_pages(path)] == [page(n).url for n in (0, 1, 2, 4)]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "crawl-00000.warc.gz"
    path.symlink_to("/dev/full")
    with pytest.raises(OutOfSpaceError, match="crawl-00000"):
        WarcWriter(tmp_path)
