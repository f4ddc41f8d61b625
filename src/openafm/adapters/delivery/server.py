"""Adapters of a folder, offered over plain HTTP: /manifest.json and /IDENTIFIER/FILE, with ranges.

Nothing but the files that the manifest lists can be asked for: a path is looked up, never joined.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from openafm.adapters.delivery.errors import ServerAddressError
from openafm.adapters.delivery.manifest import AdapterManifest, OfferedAdapter, OfferedFile, sign_manifest
from openafm.adapters.package import METADATA, WEIGHTS, AdapterNotFoundError, AdapterPackage, open_adapter
from openafm.core.files import file_digest

MANIFEST_PATH = "/manifest.json"
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """What is served: the signed manifest, and files with their digests by the path that they are asked for under."""

    manifest: AdapterManifest
    signed: bytes
    files: Mapping[str, tuple[Path, str]]


def stock(folder: Path, private_key: str) -> Shelf:
    """The adapters in `folder`, verified, with a manifest signed now.

    Raises:
        AdapterNotFoundError: there are none.
        AdapterError: one is damaged, or carries half a draft model.
        ConfigError: two have the same name and base.
    """
    adapters = [open_adapter(file.parent) for file in sorted(folder.glob(f"*/{METADATA}"))]
    if not adapters:
        raise AdapterNotFoundError(f"{folder} holds no adapters; `openafm adapter export --output {folder}` puts one there")
    offered, files = [], {}
    for adapter in adapters:
        adapter.verify()
        offered.append(_offered(adapter))
        for file in offered[-1].files:
            files[f"/{adapter.identifier}/{file.path}"] = (adapter.path / file.path, file.sha256)
    manifest = AdapterManifest(published=int(time.time()), adapters=tuple(offered))
    return Shelf(manifest=manifest, signed=sign_manifest(manifest, private_key), files=files)


def make_server(shelf: Shelf, host: str, port: int) -> ThreadingHTTPServer:
    """A server, bound but not yet answering; port 0 takes a free one. Call `serve_forever`, in the end `server_close`.

    Raises:
        ServerAddressError: it cannot be bound there.
    """

    class Handler(_Handler):
        shelf_served = shelf

    try:
        return _Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise ServerAddressError(f"cannot serve at {host}:{port} ({error}); choose another --host or --port") from error


def _offered(adapter: AdapterPackage) -> OfferedAdapter:
    paths = [adapter.path / METADATA, adapter.path / WEIGHTS]
    if adapter.draft is not None:
        paths += sorted(path for path in adapter.draft.rglob("[!.]*") if path.is_file())
    files = [
        OfferedFile(path=path.relative_to(adapter.path).as_posix(), bytes=path.stat().st_size, sha256=file_digest(path))
        for path in paths
    ]
    return OfferedAdapter(name=adapter.name, baseModelSignature=adapter.base_signature, files=tuple(files))


def _content_range(wanted: range, size: int) -> str:
    return f"bytes {wanted.start}-{wanted.stop - 1}/{size}"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up or stalls is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD; a strong ETag, which is the digest; one range (RFC 9110, section 14)."""

    timeout = 60.0  # seconds without a byte, after which a connection and its thread are given up
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "openafm", ""
    shelf_served: Shelf

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == MANIFEST_PATH:
            self._answer(HTTPStatus.OK, len(self.shelf_served.signed), {"Content-Type": "application/json"})
            if self.command == "GET":
                self.wfile.write(self.shelf_served.signed)
        elif path in self.shelf_served.files:
            self._send_file(*self.shelf_served.files[path])
        else:
            self._answer(HTTPStatus.NOT_FOUND, 0, {})

    def _send_file(self, path: Path, digest: str) -> None:
        try:
            file = path.open("rb")
        except OSError:  # removed since the manifest was signed
            self._answer(HTTPStatus.NOT_FOUND, 0, {})
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", "ETag": f'"{digest}"'}
            wanted = self._wanted_range(size, digest)
            if wanted is None:
                status, wanted = HTTPStatus.OK, range(size)
            elif wanted:
                status, headers["Content-Range"] = HTTPStatus.PARTIAL_CONTENT, _content_range(wanted, size)
            else:
                status, headers["Content-Range"] = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"bytes */{size}"
            self._answer(status, len(wanted), headers)
            if self.command == "GET":
                self._copy(file, wanted)

    def _wanted_range(self, size: int, digest: str) -> range | None:
        """The bytes asked for, none of them where there are none; None for the whole file."""
        asked = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", self.headers.get("Range", ""))
        if asked is None or asked[0] == "bytes=-" or self.headers.get("If-Range", f'"{digest}"') != f'"{digest}"':
            return None
        if not asked[1]:
            return range(max(0, size - int(asked[2])), size)
        return range(int(asked[1]), min(size, int(asked[2]) + 1) if asked[2] else size)

    def _copy(self, file: BinaryIO, wanted: range) -> None:
        file.seek(wanted.start)
        left = len(wanted)
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            self.wfile.write(chunk)
            left -= len(chunk)
        self.close_connection = self.close_connection or left > 0  # the file was cut short since: no next answer here

    def _answer(self, status: HTTPStatus, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: who pulls what is nobody's business."""
