"""Write and read WARC 1.1 files.

A fetched page is a group of records: the request, the screenshot and the rendered DOM if there are any, then the response.
The response is last, so a group is complete if its response is. The DOM and the screenshot are resource records of the URLs
`urn:dom:URL` and `urn:view:URL`, as browser-based archives write them. A page that has not changed is a revisit record.

The response holds the decoded body; `X-Crawler-Content-Encoding` keeps the encoding that the server sent. The header
`WARC-Training-Use` is `allowed`, or `denied: ` with the reason of the opt-out; other readers ignore it. Responses of other
crawlers lack it: then the page's own headers and meta elements decide.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from uuid import uuid4

from openafm.core.files import room_for
from openafm.core.libraries import needed
from openafm.data.web.documents import Dropped, Page
from openafm.data.web.opt_out import join_headers, split_headers, training_opt_out

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord, WarcRecordType

SOFTWARE = "openafm"
MAX_BODY_BYTES = 64 << 20
READ_REASONS = ("warc_cut", "warc_damaged", "too_large")
"""Reasons of `Dropped` that `read_pages` yields: the rest of the file cannot be read, one record is malformed, or a body is
larger than the limit."""

DOM_TYPE = "text/html; charset=utf-8"
_DOM, _VIEW = "urn:dom:", "urn:view:"
_TRAINING_USE = "WARC-Training-Use"
_ALLOWED, _DENIED = "allowed", "denied: "
_REVISIT_PROFILE = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
_HTTP_REQUEST, _HTTP_RESPONSE = "application/http; msgtype=request", "application/http; msgtype=response"
# Headers of the encoded body; archives keep them under other names, so that readers do not decode twice.
_KEPT_AS = {
    name: f"x-crawler-{name}"
    for name in ("content-encoding", "transfer-encoding", "content-length", "connection", "keep-alive")
}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_NAME = "crawl-{:05d}.warc.gz"
_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK = 1 << 20
_HEADER_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What one fetch of a page adds to a WARC file.

    `page` is the static page. `dom` and `screenshot` are what a renderer made of it; empty without one. `ip` is the address
    of the server.
    """

    page: Page
    request_headers: Mapping[str, str] = field(default_factory=dict)
    http_version: str = "1.1"
    ip: str = ""
    dom: bytes = b""
    screenshot: bytes = b""


@dataclass(frozen=True)
class Position:
    """Where a group of records is: file name, first byte, and the byte after the last."""

    file: str
    start: int
    end: int


class WarcWriter:
    """Append captures to the files of a folder; a new file is started above `max_bytes`.

    Each capture is on the disk when `write` returns. Use as a context manager.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 1 << 30, description: Mapping[str, str] | None = None) -> None:
        with needed("WARC", "fastwarc", "data"):
            importlib.import_module("fastwarc")
        self._folder, self._max_bytes, self._description = folder, max_bytes, dict(description or {})
        folder.mkdir(parents=True, exist_ok=True)
        self._index = max((int(path.name[6:11]) for path in warc_files(folder)), default=0)
        self._file = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def write(self, capture: Capture) -> Position:
        """Append a capture and return its position.

        Raises:
            OutOfSpaceError: the disk is full; the file ends where it ended before.
        """
        if self._file.tell() > self._max_bytes:
            self._file.close()
            self._index += 1
            self._file = self._open()
        return self._append(capture_bytes(capture))

    def close(self) -> None:
        """Close the current file."""
        self._file.close()

    def _open(self) -> io.FileIO:
        file = io.FileIO(self._folder / _NAME.format(self._index), "a+b")
        file.seek(0, io.SEEK_END)
        if file.tell() == 0:
            self._file = file
            self._append(_info_bytes(_NAME.format(self._index), self._description))
        return file

    def _append(self, data: bytes) -> Position:
        path = self._folder / _NAME.format(self._index)
        start = self._file.tell()
        with room_for(path):
            try:
                written = 0
                while written < len(data):  # a nearly full disk takes a part
                    written += self._file.write(data[written:])
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # a device; `recover` cuts what is left
                    self._file.truncate(start)
                    self._file.seek(start)
                raise
        return Position(path.name, start, start + len(data))


def warc_files(folder: Path) -> list[Path]:
    """Return the WARC files that a `WarcWriter` wrote, in order."""
    return sorted(folder.glob("crawl-[0-9][0-9][0-9][0-9][0-9].warc.gz"))


def capture_bytes(capture: Capture) -> bytes:
    """Return the records of a capture, each compressed on its own."""
    from fastwarc.warc import WarcRecordType

    page, response_id, out = capture.page, _new_id(), io.BytesIO()
    related = {"WARC-Target-URI": page.url, "WARC-Concurrent-To": f"<{response_id}>"}
    request = _request_block(page.url, capture.request_headers)
    _write(out, WarcRecordType.request, page, request, related, content_type=_HTTP_REQUEST, payload=b"")
    for scheme, data, content_type in (
        (_VIEW, capture.screenshot, "image/png"),
        (_DOM, capture.dom, DOM_TYPE),
    ):
        if data:
            headers = related | {"WARC-Target-URI": scheme + page.url}
            _write(out, WarcRecordType.resource, page, data, headers, content_type=content_type)
    headers = {"WARC-Target-URI": page.url, "WARC-Protocol": "h2" if capture.http_version == "2" else "http/1.1"}
    headers |= {"WARC-IP-Address": capture.ip} if capture.ip else {}
    headers[_TRAINING_USE] = _DENIED + quote(page.opt_out, safe=" :/;,=*.()") if page.opt_out else _ALLOWED
    if page.status == HTTPStatus.NOT_MODIFIED:
        headers["WARC-Profile"] = _REVISIT_PROFILE
    elif page.content_type:
        headers["WARC-Identified-Payload-Type"] = page.content_type.partition(";")[0].strip().lower()
    _write(
        out,
        WarcRecordType.revisit if page.status == HTTPStatus.NOT_MODIFIED else WarcRecordType.response,
        page,
        _response_block(page) + page.body,
        headers,
        record_id=response_id,
        content_type=_HTTP_RESPONSE,
        payload=page.body,
    )
    return out.getvalue()


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
        if not url.startswith(_DOM):
            return None
        body = record.reader.read(max_body_bytes + 1)
        if len(body) < min(record.content_length, max_body_bytes + 1):
            return Dropped(reason="warc_cut", detail="the rendered DOM", url=url.removeprefix(_DOM))
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
    use = record.headers.get(_TRAINING_USE)
    return Page(
        url=url,
        body=body,
        headers=headers,
        status=status,
        fetched_at=record.headers.get("WARC-Date") or "",
        rendered=bool(dom),
        opt_out=_declared_opt_out(url, headers, body)
        if use is None
        else unquote(use.removeprefix(_DENIED).removeprefix(_ALLOWED)),
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


def _write(
    out: BinaryIO,
    record_type: WarcRecordType,
    page: Page,
    block: bytes,
    headers: Mapping[str, str],
    *,
    content_type: str,
    record_id: str = "",
    payload: bytes | None = None,
) -> None:
    """Write one record as a gzip member. `payload` is the part of an HTTP block after its headers."""
    from fastwarc.stream_io import GzipWriter
    from fastwarc.warc import WarcRecord

    record = WarcRecord()
    record.init_headers(record_type)
    record.record_id = f"<{record_id or _new_id()}>"
    if page.fetched_at:
        record.record_date = datetime.fromisoformat(page.fetched_at)
    for name, value in headers.items():
        record.headers[name] = value
    record.headers["Content-Type"] = content_type
    record.set_bytes_content(block)
    digest = hashlib.sha1(block if payload is None else payload, usedforsecurity=False).digest()
    writer = GzipWriter(out, compression_level=6)
    record.write(writer, checksum_data=True, payload_digest=digest)
    writer.finish()


def _request_block(url: str, headers: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    lines = [f"GET {target} HTTP/1.1", f"host: {parts.netloc}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


def _response_block(page: Page) -> bytes:
    """Return status line and headers that describe the decoded body."""
    lines = [f"HTTP/1.1 {page.status} {_PHRASES.get(page.status, '')}"]
    for name, value in split_headers(page.headers):
        lines.append(f"{_KEPT_AS.get(name, name)}: {value}")
    lines.append(f"content-length: {len(page.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


def _info_bytes(name: str, description: Mapping[str, str]) -> bytes:
    from fastwarc.warc import WarcRecordType

    fields = {"software": SOFTWARE, "format": "WARC File Format 1.1", **description}
    out = io.BytesIO()
    block = "".join(f"{key}: {value}\r\n" for key, value in fields.items()).encode()
    _write(
        out,
        WarcRecordType.warcinfo,
        Page(url="", body=b""),
        block,
        {"WARC-Filename": name},
        content_type="application/warc-fields",
    )
    return out.getvalue()


def _new_id() -> str:
    return f"urn:uuid:{uuid4()}"
