"""Pull an adapter: the one for the local base, checked to the last byte, or nothing.

$OPENAFM_HOME/downloads/IDENTIFIER/SHA256.FILE.part  until all of it is there
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.errors import (
    BadSignatureError,
    DigestError,
    NotOfferedError,
    OversizeError,
    TruncatedDownloadError,
    UnreachableError,
)
from openafm.adapters.delivery.manifest import (
    MAX_MANIFEST_BYTES,
    AdapterManifest,
    OfferedAdapter,
    OfferedFile,
    open_manifest,
)
from openafm.adapters.delivery.publishers import Publisher, known_publisher, remember_publisher
from openafm.adapters.metadata import check_name
from openafm.adapters.package import AdapterPackage, open_adapter
from openafm.adapters.store import adapter_place
from openafm.core.config import nearest
from openafm.core.files import OutOfSpaceError, atomic_folder, data_home, file_digest, folder_lock, room_for
from openafm.core.progress import Progress, progress

MAX_BYTES = 8 << 30
TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """An installed adapter, the key that vouches for it, and how many bytes had to be fetched now."""

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
) -> Pulled:
    """Install the adapter of this name for this base from a server; a download that was interrupted goes on.

    `key` is the server's public key. Without it the key that the server showed at the first time is the only one trusted.

    Raises:
        AdapterNameError: the name is none.
        UnreachableError: the server does not answer, or refuses.
        BadSignatureError, AdapterManifestError, OldManifestError, HalfDraftError: its manifest is invalid.
        NotOfferedError: it has no such adapter for this base.
        OversizeError: it takes more than `max_bytes`, or more came than was announced.
        OutOfSpaceError: it does not fit on the disk.
        TruncatedDownloadError: the connection broke; the same call goes on.
        DigestError, AdapterError, AdapterMismatchError: what came is not what was announced.
        FolderInUseError: another process is pulling it.
    """
    check_name(name)
    url = _checked_url(url)
    known = known_publisher(url)
    try:
        opened = open_manifest(_read_manifest(url, timeout_s), key or (None if known is None else known.key))
    except BadSignatureError as error:
        raise BadSignatureError(f"{url}: {error}") from error
    offered = _choose(opened.manifest, name, base_signature, url)
    remember_publisher(Publisher(url=url, key=opened.key, published=opened.manifest.published))
    if offered.num_bytes > max_bytes:
        raise OversizeError(f"{offered.identifier} has {offered.num_bytes:,} bytes, allowed are {max_bytes:,}")
    place = adapter_place(name, base_signature)
    if _is_installed(place, offered):
        return Pulled(adapter=open_adapter(place), key=opened.key, num_fetched=0)
    downloads = data_home() / "downloads" / offered.identifier
    with folder_lock(downloads):
        num_fetched = _fetch_all(url, offered, downloads, timeout_s)
        adapter = _install(offered, downloads, place)
        shutil.rmtree(downloads, ignore_errors=True)
    return Pulled(adapter=adapter, key=opened.key, num_fetched=num_fetched)


def _checked_url(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        is_address = url.isascii() and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # half of the brackets of an IPv6 host
        is_address = False
    if not is_address:
        raise UnreachableError(f"'{url}' is no address of a server; expected http://HOST:PORT or https://HOST")
    return url.rstrip("/")


def _read_manifest(url: str, timeout_s: float) -> bytes:
    with _opened(f"{url}/manifest.json", timeout_s) as response:
        data = bytearray()
        for chunk in _chunks(response):
            data += chunk
            if len(data) > MAX_MANIFEST_BYTES:
                raise OversizeError(f"the manifest of {url} has more than {MAX_MANIFEST_BYTES:,} bytes")
    return bytes(data)


def _choose(manifest: AdapterManifest, name: str, base_signature: str, url: str) -> OfferedAdapter:
    versions = [adapter for adapter in manifest.adapters if adapter.name == name]
    if not versions:
        raise NotOfferedError(f"{url} offers no adapter '{name}'{nearest(name, [a.name for a in manifest.adapters])}")
    for adapter in versions:
        if adapter.baseModelSignature == base_signature:
            return adapter
    bases = ", ".join(adapter.baseModelSignature for adapter in versions)
    raise NotOfferedError(f"{url} offers '{name}' for the base {bases}, none for {base_signature}, which is the base here")


def _is_installed(place: Path, offered: OfferedAdapter) -> bool:
    """Whether this very version stands there, whole."""
    return all((place / file.path).is_file() and file_digest(place / file.path) == file.sha256 for file in offered.files)


def _fetch_all(url: str, offered: OfferedAdapter, downloads: Path, timeout_s: float) -> int:
    """Every file of the adapter into its part, of which the digest is right. Returns the bytes that came now."""
    parts = {_part(downloads, file): file for file in offered.files}
    for other in set(downloads.glob("*.part")) - parts.keys():  # of a version that is offered no more
        other.unlink()
    missing = sum(file.bytes - _size(part) for part, file in parts.items())
    if shutil.disk_usage(downloads).free < missing:
        raise OutOfSpaceError(f"{offered.identifier} needs {missing:,} bytes more than {downloads} has room for")
    num_fetched = num_before = 0
    with progress(f"pull {offered.identifier}", offered.num_bytes) as bar:
        for part, file in parts.items():
            num_fetched += _fetch(f"{url}/{offered.identifier}/{file.path}", file, part, timeout_s, bar, num_before)
            num_before += file.bytes
    return num_fetched


def _fetch(url: str, file: OfferedFile, part: Path, timeout_s: float, bar: Progress, num_before: int) -> int:
    """Fetch what a part lacks of its file. Parts are named by digest, so a part is never that of another file."""
    if _size(part) > file.bytes:
        part.unlink()
    start = _size(part)
    if start < file.bytes:
        start = _append(url, file, part, timeout_s, bar, num_before)
    part.touch()  # an empty file is not asked for
    if _size(part) < file.bytes:
        raise TruncatedDownloadError(
            f"{url} ended after {_size(part):,} of {file.bytes:,} bytes; run the same command again, it goes on from there"
        )
    if file_digest(part) != file.sha256:
        part.unlink()
        raise DigestError(
            f"{url} is not the file that the manifest lists; it was thrown away, pull again or tell the author"
        )
    return file.bytes - start


def _append(url: str, file: OfferedFile, part: Path, timeout_s: float, bar: Progress, num_before: int) -> int:
    """Append to the part until its end or that of the connection; returns where it went on."""
    start = _size(part)
    with _opened(url, timeout_s, start) as response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0  # the server knows no ranges
        with room_for(part), part.open("ab" if start else "wb") as stream:
            size = start
            for chunk in _chunks(response):
                size += len(chunk)
                if size > file.bytes:
                    raise OversizeError(f"{url} goes on beyond the {file.bytes:,} bytes that the manifest lists")
                stream.write(chunk)
                bar.update(num_before + size)
            stream.flush()
            os.fsync(stream.fileno())
    return start


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """What comes, as it comes, until its end or until the connection breaks; who reads it counts."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        while chunk := response.read1(_CHUNK_BYTES):
            yield chunk


def _install(offered: OfferedAdapter, downloads: Path, place: Path) -> AdapterPackage:
    """Put the parts together, beside their place; they take it only when everything has been checked."""
    for leftover in place.parent.glob(f".{place.name}.*"):  # of a process that was killed here
        shutil.rmtree(leftover)
    with atomic_folder(place) as folder:
        for file in offered.files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(_part(downloads, file), folder / file.path)
        adapter = open_adapter(folder)
        adapter.check_base(offered.baseModelSignature)
        if adapter.name != offered.name:
            raise DigestError(f"the manifest calls {adapter.identifier} '{offered.name}'; tell the author")
        adapter.verify()
    return open_adapter(place)


def _opened(url: str, timeout_s: float, start: int = 0) -> http.client.HTTPResponse:
    """The answer to a GET, from byte `start` on where the server can."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return _opened(url, timeout_s)  # what the server has is shorter than the part: anew
        raise UnreachableError(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an impossible host, of a redirection say
        raise UnreachableError(f"{url} cannot be reached: {error}") from error
    return response


def _part(downloads: Path, file: OfferedFile) -> Path:
    return downloads / f"{file.sha256}.{file.path.replace('/', '.')}.part"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
