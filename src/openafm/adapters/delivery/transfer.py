"""Resumable, verified downloads of the files that a signed manifest lists.

$OPENAFM_HOME/downloads/IDENTIFIER/SHA256.FILE.part  until the download is complete
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from openafm.adapters.delivery.errors import UnreachableError, UntrustedDeliveryError
from openafm.adapters.delivery.http import Download, chunks
from openafm.adapters.delivery.signed_text import OfferedFile
from openafm.core.files import OutOfSpaceError, data_home, file_digest, room_for
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import Progress, progress

MAX_MANIFEST_BYTES = 4 << 20
_PART = "[0-9a-f]" * 64 + ".*.part"


class Offer(Protocol):
    """What a manifest lists under one identifier."""

    @property
    def identifier(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def files(self) -> Sequence[OfferedFile]: ...


def read_manifest(url: str, download: Download) -> bytes:
    """Return the signed manifest of a server.

    Raises:
        UnreachableError: the server does not answer, refuses, or ends the download early.
        UntrustedDeliveryError: the manifest is larger than allowed.
    """
    with download.get(f"{url}/manifest.json") as response:
        data = bytearray()
        for chunk in chunks(response):
            data += chunk
            if len(data) > MAX_MANIFEST_BYTES:
                raise UntrustedDeliveryError(f"the manifest of {url} has more than {MAX_MANIFEST_BYTES:,} bytes")
    if download.is_expired:
        raise UnreachableError(f"the manifest of {url} did not arrive{download.reason}")
    return bytes(data)


def fetch_all(url: str, offered: Offer, downloads: Path, download: Download) -> int:
    """Download the missing bytes of every file into its part and verify it. Return the number of bytes downloaded.

    Raises:
        OutOfSpaceError: the files do not fit on the disk.
        UnreachableError: the server does not answer, refuses, or ends the download early; the same call resumes.
        UntrustedDeliveryError: a file is not the one that the manifest lists.
    """
    parts = {part_file(downloads, file): file for file in offered.files}
    _remove_parts(downloads, keep=set(parts))  # those of versions that are no longer offered
    missing = sum(file.bytes - _size(part) for part, file in parts.items())
    if shutil.disk_usage(downloads).free < missing:
        raise OutOfSpaceError(f"{offered.identifier} needs {missing:,} bytes, more than {downloads} has room for")
    num_fetched = num_before = 0
    with progress(f"pull {offered.identifier}", offered.num_bytes) as bar:
        for part, file in parts.items():
            address = f"{url}/{offered.identifier}/{file.path}"
            num_fetched += _fetch(address, file, part, download, bar, num_before)
            num_before += file.bytes
    return num_fetched


@contextlib.contextmanager
def download_folder(offered: Offer) -> Iterator[Path]:
    """Lock and yield the folder of an offer's parts; it is removed after success. After an error the same call resumes.

    Raises:
        FolderInUseError: another process downloads the same offer.
    """
    downloads = data_home() / "downloads" / offered.identifier
    with folder_lock(downloads):
        yield downloads
        _remove_parts(downloads, keep=set())
        (downloads / ".lock").unlink()
        with contextlib.suppress(OSError):  # it holds files of others
            downloads.rmdir()


def _remove_parts(downloads: Path, keep: set[Path]) -> None:
    """Remove all parts but those to keep."""
    for part in set(downloads.glob(_PART)) - keep:
        part.unlink()


def _fetch(url: str, file: OfferedFile, part: Path, download: Download, bar: Progress, num_before: int) -> int:
    """Download the missing bytes of a file and verify it. A part is named by digest, so it belongs to this very file."""
    if _size(part) > file.bytes:
        part.unlink()
    start = _size(part)
    if start < file.bytes:
        start = _append(url, file, part, download, bar, num_before)
    part.touch()  # an empty file is not requested
    if _size(part) < file.bytes:
        raise UnreachableError(
            f"{url} ended after {_size(part):,} of {file.bytes:,} bytes{download.reason}; "
            "run the same command again to resume the download"
        )
    if file_digest(part) != file.sha256:
        part.unlink()
        raise UntrustedDeliveryError(
            f"{url} is not the file that the manifest lists; it was deleted, pull again or inform the author"
        )
    return file.bytes - start


def _append(url: str, file: OfferedFile, part: Path, download: Download, bar: Progress, num_before: int) -> int:
    """Append to the part until the end of the file or of the connection. Return the position of the first new byte."""
    start = _size(part)
    with download.get(url, start) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0  # the server does not support ranges
        with room_for(part), part.open("ab" if start else "wb") as stream:
            size = start
            for chunk in chunks(response):
                size += len(chunk)
                if size > file.bytes:
                    raise UntrustedDeliveryError(f"{url} is larger than the {file.bytes:,} bytes that the manifest lists")
                stream.write(chunk)
                bar.update(num_before + size)
            stream.flush()
            os.fsync(stream.fileno())
    return start


def part_file(downloads: Path, file: OfferedFile) -> Path:
    """Return the file of a download that is not complete or not installed yet."""
    return downloads / f"{file.sha256}.{file.path.replace('/', '.')}.part"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
