"""Serve bundles of this machine over plain HTTP with a signed manifest: /manifest.json and /NAME-SIGNATURE/FILE."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from openafm.adapters.delivery.server import Served, ServedFile
from openafm.bundle.bundle import Bundle
from openafm.bundle.errors import BundleError
from openafm.bundle.library.manifest import BundleManifest, OfferedBundle, OfferedBundleFile, sign_bundles
from openafm.bundle.store import FILE_PATTERNS
from openafm.core.regular_files import NotAFileError, open_regular


def share_bundles(bundles: Sequence[Bundle], private_key: str) -> Served:
    """Return verified bundles with a manifest signed now, for `adapters.delivery.server.make_server`.

    Raises:
        BundleTamperedError: a part of a bundle differs from the signed one.
        BundleError: a file is a link, or a name cannot be offered.
        ConfigError: two bundles have the same name.
    """
    offered, files = [], {}
    for bundle in bundles:
        bundle.verify()
        offer = OfferedBundle(
            name=bundle.name,
            signature=bundle.signature,
            files=tuple(_offered_file(bundle.path, name) for name in bundle_files(bundle.path)),
        )
        offered.append(offer)
        for file in offer.files:
            files[f"/{offer.identifier}/{file.path}"] = ServedFile(root=bundle.path, name=file.path, digest=file.sha256)
    manifest = BundleManifest(published=int(time.time()), bundles=tuple(offered))
    return Served(signed=sign_bundles(manifest, private_key), files=files)


def bundle_files(path: Path) -> list[str]:
    """Return the names of a bundle's files relative to its folder, documents first."""
    found = {str(file.relative_to(path)) for pattern in FILE_PATTERNS for file in path.glob(pattern)}
    return sorted(found, key=lambda name: (name.endswith(".safetensors"), name))


def _offered_file(root: Path, name: str) -> OfferedBundleFile:
    try:
        with open_regular(root, name) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return OfferedBundleFile(path=name, bytes=os.fstat(file.fileno()).st_size, sha256=digest)
    except NotAFileError as error:
        raise BundleError(f"{error}; copy the file into the bundle") from error
