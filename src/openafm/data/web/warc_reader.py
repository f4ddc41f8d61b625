"""Read the pages of WARC files, of this project's crawls and of other ones; `warc.py` describes the records."""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote

from openafm.core.libraries import needed
from openafm.data.web.documents import Dropped, Page
from openafm.data.web.permissions.opt_out import join_headers, training_opt_out
from openafm.data.web.warc import ALLOWED, DENIED, DOM_SCHEME, DOM_TYPE, MAX_BODY_BYTES, TRAINING_USE

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

READ_REASONS = ("warc_cut", "warc_damaged", "too_large")
"""Reasons of `Dropped` that `read_pages` yields: the rest of the file cannot be read, one record is malformed, or a body is
larger than the limit."""

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK = 1 << 20
_HEADER_BYTES = 4096


def read_pages(
    path: Path, *, max_body_bytes: int = MAX_BODY_BYTES, start: int = 0, stop: int | None = None
) -> Iterator[Page | Dropped]:
    """Yield the pages of a WARC file in order, from byte `start` up to `stop`, the beginnings of records.

    A page that was rendered has the DOM as its body. Bodies are decoded. Revisits are left out: they have no body.
    A file that is cut or damaged gives the pages before that place and then one `Dropped`; its reasons are `READ_REASONS`.

    Raises:
        FileNotFoundError: there is no such file.
    """
    yield from _read(path, max_body_bytes=max_body_bytes, start=start, stop=stop, with_revisits=False)


def _read(path: Path, *, max_body_bytes: int, start: int, stop: int | None, with_revisits: bool) -> Iterator[Page | Dropped]:
    with needed("WARC", "fastwarc", "data"):
        from fastwarc.warc import ArchiveIterator, WarcRecordType

    wanted = WarcRecordType.response | WarcRecordType.resource
    wanted |= WarcRecordType.revisit if with_revisits else WarcRecordType.no_type
    doms: dict[str, bytes] = {}
    last, found = start, None
    with path.open("rb") as file:
        file.seek(start)
        try:
            for record in ArchiveIterator(file, record_types=wanted, parse_http=False):
                if found is not None:
                    yield found  # one record late, because the last one may be cut
                if stop is not None and record.stream_pos >= stop:
                    return
                last, found = record.stream_pos, _page_of(record, doms, max_body_bytes)
            problem = "" if _ends_complete(file, last) else "the file ends inside a record"
        except (OSError, EOFError, ValueError) as error:
            problem = str(error)
        if isinstance(found, Page) or (found is not None and not problem):
            yield found
        if problem:
            yield Dropped(reason="warc_cut", detail=f"{path.name} after byte {last}: {problem}")


def response_positions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the URL and the first byte of each HTTP response of a WARC file, up to a place where it is cut."""
    with needed("WARC", "fastwarc", "data"):
        from fastwarc.warc import ArchiveIterator, WarcRecordType

    with path.open("rb") as file, contextlib.suppress(OSError, EOFError, ValueError):
        for record in ArchiveIterator(file, record_types=WarcRecordType.response, parse_http=False):
            yield (record.headers.get("WARC-Target-URI") or "").strip("<>"), record.stream_pos


def recover(path: Path, start: int) -> list[Page]:
    """Return the pages and revisits after byte `start` and cut the file after the last complete one.

    A process that was killed may have written captures that it has not noted anywhere else, the last one in part.
    """
    end = start
    with path.open("r+b") as file:
        for member_end, begin in _members(file, start):
            header = begin.partition(b"\r\n\r\n")[0].lower()
            if any(b"warc-type: " + kind in header for kind in (b"response", b"revisit", b"warcinfo")):
                end = member_end
        file.truncate(end)
    if end == start:
        return []
    found = _read(path, max_body_bytes=MAX_BODY_BYTES, start=start, stop=None, with_revisits=True)
    return [page for page in found if isinstance(page, Page)]


def _page_of(record: WarcRecord, doms: dict[str, bytes], max_body_bytes: int) -> Page | Dropped | None:
    """Return the page of a record; None for the DOM, which is kept in `doms`, and for other records."""
    from fastwarc.warc import WarcRecordType

    url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
    if record.record_type == WarcRecordType.resource:
        if not url.startswith(DOM_SCHEME):
            return None
        body = record.reader.read(max_body_bytes + 1)
        if len(body) < min(record.content_length, max_body_bytes + 1):
            return Dropped(reason="warc_cut", detail="the rendered DOM", url=url.removeprefix(DOM_SCHEME))
        doms[record.headers.get("WARC-Concurrent-To") or ""] = body
        return None
    if not (record.headers.get("Content-Type") or "").startswith("application/http"):
        return None  # DNS answers in files of other crawlers
    return _http_page(record, url, doms.pop(record.headers.get("WARC-Record-ID") or "", b""), max_body_bytes)


def _http_page(record: WarcRecord, url: str, dom: bytes, max_body_bytes: int) -> Page | Dropped:
    record.parse_http()
    length = record.content_length
    raw = record.reader.read(max_body_bytes + 1)
    if len(raw) < min(length, max_body_bytes + 1):
        return Dropped(reason="warc_cut", detail=f"{len(raw)} of {length} bytes", url=url)
    http = record.http_headers
    status = http.status_code if http is not None else None
    if not url or http is None or status is None:
        return Dropped(reason="warc_damaged", detail="a response without URL or HTTP status", url=url)
    headers = join_headers(http.items())
    try:
        body = dom or _decoded(raw, headers, max_body_bytes + 1)
    except (OSError, EOFError, ValueError) as error:
        return Dropped(reason="warc_damaged", detail=f"the body cannot be decoded: {error}", url=url)
    if max(len(raw), len(body)) > max_body_bytes:
        return Dropped(reason="too_large", detail=f"more than {max_body_bytes:,} bytes", url=url)
    if dom:
        headers["content-type"] = DOM_TYPE  # not the encoding of the static page
    use = record.headers.get(TRAINING_USE)
    return Page(
        url=url,
        body=body,
        headers=headers,
        status=status,
        fetched_at=record.headers.get("WARC-Date") or "",
        rendered=bool(dom),
        opt_out=_declared_opt_out(url, headers, body)
        if use is None
        else unquote(use.removeprefix(DENIED).removeprefix(ALLOWED)),
    )


def _declared_opt_out(url: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return the opt-out of a response without a record of it."""
    is_image = headers.get("content-type", "").lower().startswith("image/")
    return training_opt_out(url, headers, b"" if is_image else body, is_image=is_image)


def _decoded(raw: bytes, headers: Mapping[str, str], limit: int) -> bytes:
    """Return at most `limit` bytes of a body without its transfer and content encodings."""
    from fastwarc.stream_io import BrotliReader, ChunkedReader, GzipReader, ZstdReader

    readers = {"chunked": ChunkedReader, "gzip": GzipReader, "x-gzip": GzipReader, "br": BrotliReader, "zstd": ZstdReader}
    names = f"{headers.get('content-encoding', '')},{headers.get('transfer-encoding', '')}".lower().split(",")
    for name in reversed([name.strip() for name in names]):
        if name == "deflate":
            raw = _inflated(raw, limit)
        elif name in readers:
            raw = readers[name](io.BytesIO(raw)).read(limit)
        elif name not in ("", "identity"):
            raise ValueError(f"unknown encoding {name!r}")
    return raw


def _inflated(raw: bytes, limit: int) -> bytes:
    """Return the start of a deflate stream; servers send it with and without the zlib header."""
    try:
        return zlib.decompressobj().decompress(raw, limit)
    except zlib.error:
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, limit)
        except zlib.error as error:
            raise ValueError(str(error)) from error


def _ends_complete(file: BinaryIO, last: int) -> bool:
    """Return True if the file from byte `last`, the beginning of a record, consists of complete records."""
    file.seek(last)
    if file.read(2) == _GZIP_MAGIC:
        ends = [end for end, _ in _members(file, last)]
        return ends[-1:] == [file.seek(0, io.SEEK_END)]
    size = file.seek(0, io.SEEK_END)
    file.seek(max(last, size - 4))
    return size == last or file.read() == b"\r\n\r\n"


def _members(file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield the end and the first bytes of each complete gzip member from byte `start`."""
    position = start
    while True:
        file.seek(position)
        decoder, begin = zlib.decompressobj(16 + zlib.MAX_WBITS), b""
        try:
            while not decoder.eof:
                data = decoder.unconsumed_tail or file.read(_BLOCK)
                if not data:
                    return
                content = decoder.decompress(data, _BLOCK)
                begin = begin or content[:_HEADER_BYTES]
        except zlib.error:
            return
        position = file.tell() - len(decoder.unused_data)
        yield position, begin
