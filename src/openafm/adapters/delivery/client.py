"""Pull an adapter for the local base from a server, verify it and install it."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.errors import NotOfferedError, UntrustedDeliveryError
from openafm.adapters.delivery.http import Download
from openafm.adapters.delivery.manifest import (
    AdapterManifest,
    OfferedAdapter,
    open_manifest,
)
from openafm.adapters.delivery.publishers import Publisher, canonical_url, known_publisher, remember_publisher
from openafm.adapters.delivery.transfer import download_folder, fetch_all, part_file, read_manifest
from openafm.adapters.metadata import check_name
from openafm.adapters.package import FILE_PATTERNS, MAX_BYTES, AdapterPackage, open_adapter
from openafm.adapters.store import adapter_place
from openafm.core.config import nearest
from openafm.core.files import atomic_folder, check_written, file_digest

TIMEOUT_S = 30.0
MANIFEST_S = 60.0
TOTAL_S = 4 * 3600.0


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
        signed = read_manifest(url, download)
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
    with download_folder(offered) as downloads:
        with Download(total_s, timeout_s) as download:
            num_fetched = fetch_all(url, offered, downloads, download)
        adapter = _install(offered, downloads, place)
    return Pulled(adapter=adapter, key=opened.key, num_fetched=num_fetched)


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


def _install(offered: OfferedAdapter, downloads: Path, place: Path) -> AdapterPackage:
    """Assemble the parts beside the installed folder, verify them, and replace the folder atomically."""
    for leftover in place.parent.glob(f".{place.name}.*"):  # of a process that was killed here
        if re.fullmatch("[0-9a-f]{8}", leftover.suffix[1:]) and not leftover.is_symlink():
            shutil.rmtree(leftover)
    with atomic_folder(place) as folder:
        for file in offered.files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part_file(downloads, file), folder / file.path)
        adapter = open_adapter(folder)
        adapter.check_base(offered.baseModelSignature)
        if adapter.name != offered.name:
            raise UntrustedDeliveryError(f"the manifest lists {adapter.identifier} as '{offered.name}'; inform the author")
        adapter.verify()
    return open_adapter(place)
