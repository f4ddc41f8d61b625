"""Write WARC 1.1 files; `warc_reader.py` reads them.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

from openafm.core.files import room_for
from openafm.core.libraries import needed
from openafm.data.web.documents import Page
from openafm.data.web.permissions.opt_out import split_headers

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecordType

SOFTWARE = "openafm"
MAX_BODY_BYTES = 64 << 20
DOM_TYPE = "text/html; charset=utf-8"
DOM_SCHEME, _VIEW = "urn:dom:", "urn:view:"
TRAINING_USE = "WARC-Training-Use"
ALLOWED, DENIED = "allowed", "denied: "
_REVISIT_PROFILE = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"
_HTTP_REQUEST, _HTTP_RESPONSE = "application/http; msgtype=request", "application/http; msgtype=response"
# Headers of the encoded body; archives keep them under other names, so that readers do not decode twice.
_KEPT_AS = {
    name: f"x-crawler-{name}"
    for name in ("content-encoding", "transfer-encoding", "content-length", "connection", "keep-alive")
}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_NAME = "crawl-{:05d}.warc.gz"


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
        (DOM_SCHEME, capture.dom, DOM_TYPE),
    ):
        if data:
            headers = related | {"WARC-Target-URI": scheme + page.url}
            _write(out, WarcRecordType.resource, page, data, headers, content_type=content_type)
    headers = {"WARC-Target-URI": page.url, "WARC-Protocol": "h2" if capture.http_version == "2" else "http/1.1"}
    headers |= {"WARC-IP-Address": capture.ip} if capture.ip else {}
    headers[TRAINING_USE] = DENIED + quote(page.opt_out, safe=" :/;,=*.()") if page.opt_out else ALLOWED
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
