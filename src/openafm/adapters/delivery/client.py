"""Pull an adapter for the local base from a server, verify it and install it.

$OPENAFM_HOME/downloads/IDENTIFIER/SHA256.FILE.part  until the download is complete
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.errors import NotOfferedError, UnreachableError, UntrustedDeliveryError
from openafm.adapters.delivery.http import Download, chunks
from openafm.adapters.delivery.manifest import (
    MAX_MANIFEST_BYTES,
    AdapterManifest,
    OfferedAdapter,
    OfferedFile,
    open_manifest,
)
from openafm.adapters.delivery.publishers import Publisher, canonical_url, known_publisher, remember_publisher
from openafm.adapters.metadata import check_name
from openafm.adapters.package import FILE_PATTERNS, MAX_BYTES, AdapterPackage, open_adapter
from openafm.adapters.store import adapter_place
from openafm.core.config import nearest
from openafm.core.files import OutOfSpaceError, atomic_folder, check_written, data_home, file_digest, folder_lock, room_for
from openafm.core.progress import Progress, progress

TIMEOUT_S = 30.0
MANIFEST_S = 60.0
TOTAL_S = 4 * 3600.0
_PART = "[0-9a-f]" * 64 + ".*.part"


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """An installed adapter, the public key that verified it, and the number of bytes downloaded."""

    adapter: AdapterPackage
    key: str
    num_fetched: int


def pull_adapter(
    url: str,
    name: str,
    base_signature: str,
    key: str | None = None,
    max_bytes: int = MAX_BYTES,
    timeout_s: float = TIMEOUT_S,
    total_s: float = TOTAL_S,
) -> Pulled:
    """Install the adapter of this name for this base from a server. An interrupted download is resumed.

    `key` is the server's public key; without it the key of the first pull from this URL is trusted. `timeout_s` limits the
    time without a byte, `total_s` the time of the whole download.

    Raises:
        AdapterNameError: the name is invalid.
        UnreachableError: the server does not answer, refuses, or ends the download early; the same call resumes.
        UntrustedDeliveryError: manifest or files are not as signed, older than before, or larger than announced or allowed.
        NotOfferedError: the server has no such adapter for this base.
        OutOfSpaceError: it does not fit on the disk.
        AdapterError, AdapterMismatchError: the adapter is damaged or belongs to another base.
        ForeignFilesError: the installed folder holds files that openafm did not write.
        FolderInUseError: another process is pulling it.
    """
    check_name(name)
    url = canonical_url(url)
    known = known_publisher(url)
    with Download(min(MANIFEST_S, total_s), timeout_s) as download:
        signed = _read_manifest(url, download)
    try:
        opened = open_manifest(signed, key or (None if known is None else known.key))
    except UntrustedDeliveryError as error:
        raise UntrustedDeliveryError(f"{url}: {error}") from error
    offered = _choose(opened.manifest, name, base_signature, url)
    remember_publisher(Publisher(url=url, key=opened.key, published=opened.manifest.published))
    if offered.num_bytes > max_bytes:
        raise UntrustedDeliveryError(f"{offered.identifier} has {offered.num_bytes:,} bytes, allowed are {max_bytes:,}")
    place = adapter_place(name, base_signature)
    if place.exists():
        check_written(place, FILE_PATTERNS)
    if _is_installed(place, offered):
        return Pulled(adapter=open_adapter(place), key=opened.key, num_fetched=0)
    downloads = data_home() / "downloads" / offered.identifier
    with folder_lock(downloads):
        with Download(total_s, timeout_s) as download:
            num_fetched = _fetch_all(url, offered, downloads, download)
        adapter = _install(offered, downloads, place)
        _remove_parts(downloads, keep=set())
        (downloads / ".lock").unlink()
        with contextlib.suppress(OSError):  # it holds files of others
            downloads.rmdir()
    return Pulled(adapter=adapter, key=opened.key, num_fetched=num_fetched)


def _read_manifest(url: str, download: Download) -> bytes:
    with download.get(f"{url}/manifest.json") as response:
        data = bytearray()
        for chunk in chunks(response):
            data += chunk
            if len(data) > MAX_MANIFEST_BYTES:
                raise UntrustedDeliveryError(f"the manifest of {url} has more than {MAX_MANIFEST_BYTES:,} bytes")
    if download.is_expired:
        raise UnreachableError(f"the manifest of {url} did not arrive{download.reason}")
    return bytes(data)


def _choose(manifest: AdapterManifest, name: str, base_signature: str, url: str) -> OfferedAdapter:
    versions = [adapter for adapter in manifest.adapters if adapter.name == name]
    if not versions:
        raise NotOfferedError(f"{url} offers no adapter '{name}'{nearest(name, [a.name for a in manifest.adapters])}")
    for adapter in versions:
        if adapter.baseModelSignature == base_signature:
            return adapter
    bases = ", ".join(adapter.baseModelSignature for adapter in versions)
    raise NotOfferedError(f"{url} offers '{name}' for the base {bases}, none for the local base {base_signature}")


def _is_installed(place: Path, offered: OfferedAdapter) -> bool:
    """Return True if this version is installed and undamaged."""
    return all((place / file.path).is_file() and file_digest(place / file.path) == file.sha256 for file in offered.files)


def _fetch_all(url: str, offered: OfferedAdapter, downloads: Path, download: Download) -> int:
    """Download the missing bytes of every file into its part and verify it. Return the number of bytes downloaded."""
    parts = {_part(downloads, file): file for file in offered.files}
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


def _remove_parts(downloads: Path, keep: set[Path]) -> None:
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


def _install(offered: OfferedAdapter, downloads: Path, place: Path) -> AdapterPackage:
    """Assemble the parts beside the installed folder, verify them, and replace the folder atomically."""
    for leftover in place.parent.glob(f".{place.name}.*"):  # of a process that was killed here
        if re.fullmatch("[0-9a-f]{8}", leftover.suffix[1:]) and not leftover.is_symlink():
            shutil.rmtree(leftover)
    with atomic_folder(place) as folder:
        for file in offered.files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(_part(downloads, file), folder / file.path)
        adapter = open_adapter(folder)
        adapter.check_base(offered.baseModelSignature)
        if adapter.name != offered.name:
            raise UntrustedDeliveryError(f"the manifest lists {adapter.identifier} as '{offered.name}'; inform the author")
        adapter.verify()
    return open_adapter(place)


def _part(downloads: Path, file: OfferedFile) -> Path:
    return downloads / f"{file.sha256}.{file.path.replace('/', '.')}.part"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
