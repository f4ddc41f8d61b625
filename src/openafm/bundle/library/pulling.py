"""Pull bundles into the library: from a folder, a file URL, a server with a signed manifest, or the Hugging Face hub."""

from __future__ import annotations

import os
import re
import shutil
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from openafm.adapters.delivery.errors import NotOfferedError, UntrustedDeliveryError
from openafm.adapters.delivery.http import Download
from openafm.adapters.delivery.publishers import Publisher, canonical_url, known_publisher, remember_publisher
from openafm.adapters.delivery.transfer import download_folder, fetch_all, part_file, read_manifest
from openafm.bundle.bundle import Bundle
from openafm.bundle.errors import BundleTamperedError
from openafm.bundle.library.manifest import OfferedBundle, open_bundles
from openafm.bundle.library.sharing import bundle_files
from openafm.bundle.store import bundle_place
from openafm.core.config import nearest
from openafm.core.errors import OpenAFMError, UsageError
from openafm.core.files import atomic_folder, data_home
from openafm.core.regular_files import copy_files

TIMEOUT_S, MANIFEST_S, TOTAL_S = 30.0, 60.0, 24 * 3600.0
MAX_BYTES = 1 << 40
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]


class HubError(OpenAFMError):
    """The Hugging Face hub did not deliver a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class PulledBundle:
    """A bundle in the library, the number of bytes downloaded, and the key that verified the server's manifest."""

    bundle: Bundle
    num_fetched: int = 0
    key: str | None = None
    notes: tuple[str, ...] = ()


def pull_copy(source: str, name: str | None = None) -> PulledBundle:
    """Copy a bundle from a folder or file URL, verified, atomically.

    Raises:
        UsageError: there is no such folder, the URL is of another machine, or a bundle of this name exists with other
            content.
        BundleError, BundleTamperedError: the folder is not a bundle, or is damaged.
        OutOfSpaceError: it does not fit on the disk.
    """
    path = _local_path(source)
    if not path.is_dir():
        raise UsageError(
            f"{source} is not a folder; pull takes the folder of a bundle, file:///PATH, http(s)://SERVER of `openafm"
            " share`, or OWNER/NAME of the Hugging Face hub"
        )
    bundle = Bundle(path)
    bundle.verify()
    place = bundle_place(name or bundle.name)
    if (installed := _installed(place, bundle.signature)) is not None:
        return PulledBundle(bundle=installed)
    with atomic_folder(place) as folder:
        copy_files(bundle.path, folder, bundle_files(bundle.path), MAX_BYTES)
        Bundle(folder).verify()
    return PulledBundle(bundle=Bundle(place))


def pull_served(url: str, offered_name: str | None, name: str | None = None, key: str | None = None) -> PulledBundle:
    """Install a bundle from a server with a signed manifest. An interrupted download is resumed by the same call.

    `key` is the server's public key; without it the key of the first pull from this URL is trusted. `offered_name` may be
    None if the server offers one bundle.

    Raises:
        UnreachableError: the server does not answer, refuses, or ends the download early.
        UntrustedDeliveryError: manifest or files are not as signed, or older than before.
        NotOfferedError: the server has no bundle of this name.
        UsageError: a bundle of this name exists with other content.
        OutOfSpaceError: it does not fit on the disk.
        FolderInUseError: another process is pulling it.
    """
    url = canonical_url(url)
    known = known_publisher(url)
    with Download(MANIFEST_S, TIMEOUT_S) as download:
        signed = read_manifest(url, download)
    try:
        manifest, key = open_bundles(signed, key or (None if known is None else known.key))
    except UntrustedDeliveryError as error:
        raise UntrustedDeliveryError(f"{url}: {error}") from error
    names = [each.name for each in manifest.bundles]
    if offered_name is None and len(names) != 1:
        raise UsageError(f"{url} offers {', '.join(names) or 'no bundles'}; name the bundle: `openafm pull URL NAME`")
    offered = next((each for each in manifest.bundles if offered_name in (None, each.name)), None)
    if offered is None:
        raise NotOfferedError(f"{url} has no bundle '{offered_name}'{nearest(offered_name or '', names)}")
    remember_publisher(Publisher(url=url, key=key, published=manifest.published))
    place = bundle_place(name or offered.name)
    if (installed := _installed(place, offered.signature)) is not None:
        return PulledBundle(bundle=installed, key=key)
    with download_folder(offered) as downloads:
        with Download(TOTAL_S, TIMEOUT_S) as download:
            num_fetched = fetch_all(url, offered, downloads, download)
        bundle = _install(offered, downloads, place)
    return PulledBundle(bundle=bundle, num_fetched=num_fetched, key=key)


def pull_hub(repository: str, name: str | None = None) -> PulledBundle:
    """Download a checkpoint from the Hugging Face hub with `huggingface_hub` and import it. HF_ENDPOINT names another hub.

    Raises:
        UsageError: `huggingface_hub` is not installed, or a bundle of this name exists.
        HubError: the hub does not answer or has no such checkpoint; the same call resumes.
        HuggingFaceError: the checkpoint needs an unsupported feature.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise UsageError("pulling from the hub needs huggingface_hub; run `pip install huggingface_hub`") from error
    from openafm.bundle.hugging_face import import_hugging_face

    place = bundle_place(name or repository.rpartition("/")[2])
    _installed(place, None)
    folder = data_home() / "downloads" / repository.replace("/", "--")
    try:
        huggingface_hub.snapshot_download(
            repository, local_dir=folder, allow_patterns=_HUB_FILES, endpoint=os.environ.get("HF_ENDPOINT")
        )
    except Exception as error:  # it raises classes of its HTTP library and its own, without a common base
        raise HubError(f"{repository} was not downloaded ({error}); run the same command again to resume") from error
    report = import_hugging_face(folder, place)
    shutil.rmtree(folder)
    return PulledBundle(bundle=report.bundle, notes=report.notes)


def is_hub_name(source: str) -> bool:
    """Return whether a source is the name of a repository of the hub: OWNER/NAME, and no folder here."""
    return _HUB_NAME.fullmatch(source) is not None and not Path(source).exists()


def _local_path(source: str) -> Path:
    parts = urllib.parse.urlsplit(source)
    if parts.scheme != "file":
        return Path(source)
    if parts.netloc not in ("", "localhost"):
        raise UsageError(f"{source} names the machine {parts.netloc}; use file:///PATH for a folder of this machine")
    return Path(urllib.request.url2pathname(parts.path))


def _installed(place: Path, signature: str | None) -> Bundle | None:
    """The bundle at `place` if it is the one with this signature; None if there is none."""
    if not place.exists():
        return None
    bundle = Bundle(place)
    if bundle.signature != signature:
        raise UsageError(f"the bundle '{place.name}' exists with other content; choose another --name, or remove it first")
    return bundle


def _install(offered: OfferedBundle, downloads: Path, place: Path) -> Bundle:
    """Assemble the parts beside the library's folder, verify them, and put the folder in place atomically."""
    with atomic_folder(place) as folder:
        for file in offered.files:
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part_file(downloads, file), folder / file.path)
        bundle = Bundle(folder)
        if bundle.signature != offered.signature:
            raise BundleTamperedError(f"the manifest lists {offered.identifier}, its files are {bundle.signature}")
        bundle.verify()
    return Bundle(place)
