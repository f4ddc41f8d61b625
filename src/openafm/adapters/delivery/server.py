"""Serve the adapters of a folder over plain HTTP: /manifest.json and /IDENTIFIER/FILE, with ranges.

Only the files of the manifest are served: requested paths are looked up, never joined, and links are not followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from openafm.adapters.delivery.errors import DeliverySetupError
from openafm.adapters.delivery.manifest import AdapterManifest, OfferedAdapter, OfferedAdapterFile, sign_manifest
from openafm.adapters.package import (
    METADATA,
    AdapterError,
    AdapterNotFoundError,
    AdapterPackage,
    adapter_files,
    open_adapter,
)
from openafm.core.regular_files import NotAFileError, open_regular

MANIFEST_PATH = "/manifest.json"
MAX_CONNECTIONS = 64
REQUEST_S = 30.0
"""Time for a client to send a request; a connection without a request is closed after it."""
_CHUNK_BYTES = 1 << 18
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class ServedFile:
    """The file `name` below the folder `root`, and its SHA-256."""

    root: Path
    name: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a server sends: the signed manifest, and files by the path of their URL."""

    signed: bytes
    files: Mapping[str, ServedFile]


@dataclass(frozen=True, kw_only=True)
class Catalog(Served):
    """The adapters that a server offers."""

    manifest: AdapterManifest


def build_catalog(folder: Path, private_key: str) -> Catalog:
    """Return the verified adapters in `folder` with a manifest signed now.

    Raises:
        AdapterNotFoundError: the folder has no adapters.
        AdapterError: an adapter is damaged, incomplete, or a symbolic link.
        ConfigError: two adapters have the same name and base.
    """
    adapters = [open_adapter(_real(file.parent)) for file in sorted(folder.glob(f"*/{METADATA}"))]
    if not adapters:
        raise AdapterNotFoundError(f"{folder} has no adapters; `openafm adapter export --output {folder}` writes one there")
    offered, files = [], {}
    for adapter in adapters:
        adapter.verify()
        offered.append(_offered(adapter))
        for file in offered[-1].files:
            served = ServedFile(root=adapter.path, name=file.path, digest=file.sha256)
            files[f"/{adapter.identifier}/{file.path}"] = served
    manifest = AdapterManifest(published=int(time.time()), adapters=tuple(offered))
    return Catalog(manifest=manifest, signed=sign_manifest(manifest, private_key), files=files)


def make_server(catalog: Served, host: str, port: int) -> ThreadingHTTPServer:
    """Return a bound server; port 0 selects a free one. Call `serve_forever`, and `server_close` at the end.

    It serves `MAX_CONNECTIONS` connections at a time and answers further ones with 503.

    Raises:
        DeliverySetupError: the address cannot be bound.
    """

    class Handler(_Handler):
        served = catalog

    try:
        return _Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise DeliverySetupError(f"cannot serve at {host}:{port} ({error}); choose another --host or --port") from error


def _real(folder: Path) -> Path:
    if folder.is_symlink():
        raise AdapterError(f"{folder} is a symbolic link, which is not served; copy the adapter into the folder")
    return folder


def _offered(adapter: AdapterPackage) -> OfferedAdapter:
    names = sorted(adapter_files(adapter.path), key=lambda name: (name != METADATA, name))  # the smallest file first
    return OfferedAdapter(
        name=adapter.name,
        baseModelSignature=adapter.base_signature,
        files=tuple(_offered_file(adapter.path, name) for name in names),
    )


def _offered_file(root: Path, name: str) -> OfferedAdapterFile:
    try:
        with open_regular(root, name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return OfferedAdapterFile(path=name, bytes=os.fstat(file.fileno()).st_size, sha256=digest)
    except NotAFileError as error:
        raise AdapterError(f"{error}; copy the file into the adapter") from error


def _content_range(wanted: range, size: int) -> str:
    return f"bytes {wanted.start}-{wanted.stop - 1}/{size}"


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not report clients that disconnect or stall."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD with a strong ETag, the digest, and single ranges (RFC 9110, section 14)."""

    timeout = 60.0  # seconds without progress before a connection is closed
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "openafm", ""
    served: Served

    def handle_one_request(self) -> None:
        deadline = threading.Timer(REQUEST_S, self._disconnect)  # for clients that send one byte at a time
        deadline.daemon = True
        self._deadline = deadline
        deadline.start()
        try:
            super().handle_one_request()
        finally:
            deadline.cancel()

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self._deadline.cancel()
        path = self.path.partition("?")[0]
        if path == MANIFEST_PATH:
            self._answer(HTTPStatus.OK, len(self.served.signed), {"Content-Type": "application/json"})
            if self.command == "GET":
                self.wfile.write(self.served.signed)
        elif path in self.served.files:
            self._send_file(self.served.files[path])
        else:
            self._answer(HTTPStatus.NOT_FOUND, 0, {})

    def _send_file(self, served: ServedFile) -> None:
        digest = served.digest
        try:
            file = open_regular(served.root, served.name)
        except OSError:  # removed or replaced by a link since the manifest was signed
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
        """Return the requested bytes, empty if the file has none of them; None for the whole file."""
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
        self.close_connection = self.close_connection or left > 0  # the file was truncated: close

    def _answer(self, status: HTTPStatus, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
