"""Get the source of Apple's SDK: pip downloads it, checks its digest and unpacks it. It is never built."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from openafm.core.errors import OpenAFMError

DISTRIBUTION, PACKAGE = "apple-fm-sdk", "apple_fm_sdk"
PINNED_VERSION = "0.2.1"
_PINNED_SHA256 = "e1801d68ae0517f8524c31723b1dc1a662bf9d06b7a9cc765c9dddb77e647980"
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+]{0,63}")
_SECONDS = 300


class SourceUnavailableError(OpenAFMError):
    """The source distribution cannot be downloaded or read."""


@dataclass(frozen=True, kw_only=True)
class SdkSource:
    """Hold an unpacked source distribution, or a checkout of its repository."""

    root: Path
    version: str
    metadata: str  # core metadata, the content of a `METADATA` file

    @property
    def package(self) -> Path:
        """The folder of the Python package."""
        return self.root / "src" / PACKAGE

    @property
    def repository(self) -> str | None:
        """The URL of the source repository in the project's metadata."""
        links = email.message_from_string(self.metadata).get_all("Project-URL", [])
        named = {name.strip().lower(): link.strip() for name, _, link in (str(each).partition(",") for each in links)}
        return named.get("source")


def open_source(given: Path | None, scratch: Path) -> SdkSource:
    """Return the source in `given`, a folder or a source distribution; by default pip downloads the pinned version.

    Args:
        scratch: an existing folder to unpack into.

    Raises:
        SourceUnavailableError: the download failed, its digest is wrong, or `given` is not the SDK.
    """
    if given is None:
        return _read(_fetch(scratch))
    if given.is_file():
        return _read(_unpack(given, scratch))
    return _read(given)


def _read(root: Path) -> SdkSource:
    try:
        if (root / "PKG-INFO").is_file():
            metadata = (root / "PKG-INFO").read_text("utf-8")
        else:
            metadata = _metadata_of(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"])
        fields = email.message_from_string(metadata)
        name, version = str(fields["Name"]), str(fields["Version"])
    except (OSError, ValueError, KeyError) as error:
        raise SourceUnavailableError(f"{root} is not a source distribution of {DISTRIBUTION} ({error})") from error
    if name != DISTRIBUTION or not (root / "src" / PACKAGE / "__init__.py").is_file():
        raise SourceUnavailableError(f"{root} holds {name} {version}, expected the source distribution of {DISTRIBUTION}")
    if not _VERSION.fullmatch(version):  # it becomes part of a path
        raise SourceUnavailableError(f"{root} has the version {version!r:.100}, expected one such as {PINNED_VERSION}")
    return SdkSource(root=root, version=version, metadata=metadata)


def _metadata_of(project: dict[str, str]) -> str:
    fields = {"Name": "name", "Version": "version", "Summary": "description", "License-Expression": "license"}
    lines = [f"{field}: {project[key]}" for field, key in fields.items() if key in project]
    return "\n".join(["Metadata-Version: 2.4", *lines]) + "\n"


def _fetch(scratch: Path) -> Path:
    """Let pip download, check and unpack the source. pip's build step fails without Swift and leaves the source."""
    requirements, unpacked, archives = scratch / "requirements.txt", scratch / "unpacked", scratch / "archives"
    requirements.write_text(f"{DISTRIBUTION}=={PINNED_VERSION} --hash=sha256:{_PINNED_SHA256}\n", "utf-8")
    unpacked.mkdir()
    flags = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--no-clean", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *flags, "-r", str(requirements), "-d", str(archives)]
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(unpacked))
    try:
        done = subprocess.run(command, env=os.environ | places, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceUnavailableError(_unavailable(str(error))) from error
    for archive in sorted(archives.glob("*.tar.gz")):  # on macOS the build succeeds
        return _unpack(archive, scratch)
    for information in sorted(unpacked.glob("*/*/PKG-INFO")):
        return information.parent
    output = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in output if "error" in line.lower() or "no module" in line.lower()]
    raise SourceUnavailableError(_unavailable((errors or output or ["no output"])[-1].strip()))


def _unavailable(reason: str) -> str:
    return (
        f"pip cannot download {DISTRIBUTION} {PINNED_VERSION}: {reason}. Without a network, download its source distribution"
        " elsewhere and pass it: openafm apple-sdk install --from FILE"
    )


def _unpack(archive: Path, scratch: Path) -> Path:
    folder = scratch / "sdist"
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise SourceUnavailableError(f"{archive} cannot be unpacked: {error}") from error
    roots = [path.parent for path in folder.glob("*/PKG-INFO")]
    if len(roots) != 1:
        raise SourceUnavailableError(f"{archive} is not a source distribution: it holds no PKG-INFO")
    return roots[0]
