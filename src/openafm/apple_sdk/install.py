"""Install Apple's SDK unchanged, plus the one module that only its build on macOS creates: the binding."""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import sysconfig
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openafm.apple_sdk.source import PACKAGE, SdkSource, open_source
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder

BINDING_MODULE = "_ctypes_bindings.py"
_BINDING = f'''"""The binding of openafm, in place of the one that {PACKAGE} builds on macOS."""

from openafm.apple_sdk.binding import *  # noqa: F403
'''
_INSTALLER = "openafm"
_NOT_INSTALLED = shutil.ignore_patterns(BINDING_MODULE, "lib", "__pycache__", "*.pyc")


class ForeignInstallError(OpenAFMError):
    """The SDK is installed already, and not by openafm."""


@dataclass(frozen=True, kw_only=True)
class SdkStatus:
    """Hold the state of the SDK in a Python environment.

    Attributes:
        version: the SDK's version; None if it is not installed, or incomplete.
        installer: the program that installed it; `openafm` if it runs on our engine.
        is_intact: True if every file is unchanged since installation.
        path: the package's folder, which may not exist.
    """

    version: str | None
    installer: str | None
    is_intact: bool
    path: Path

    @property
    def is_ours(self) -> bool:
        return self.installer == _INSTALLER

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}


def status(site_packages: Path | None = None) -> SdkStatus:
    """Return the state of the SDK in an environment, by default the running one."""
    site = site_packages or _site_packages()
    records = _records(site)
    if not records:
        return SdkStatus(version=None, installer=_owner_of_leftover(site), is_intact=False, path=site / PACKAGE)
    record = records[-1]
    installer = record / "INSTALLER"
    return SdkStatus(
        version=record.name.removesuffix(".dist-info").partition("-")[2],
        installer=installer.read_text("utf-8").strip() if installer.is_file() else "unknown",
        is_intact=_is_intact(record),
        path=site / PACKAGE,
    )


def install(given: Path | None = None, site_packages: Path | None = None) -> SdkStatus:
    """Install the SDK into an environment, by default the running one. Does nothing if it is installed already.

    If the process is killed, the folder holds the old or the new package; a second `install` completes it.

    Args:
        given: the source distribution, an archive or a folder; by default pip downloads the pinned version.

    Raises:
        SourceUnavailableError: the source cannot be downloaded or read.
        ForeignInstallError: another installer has installed the SDK.
    """
    site = site_packages or _site_packages()
    found = _require_ours(site)
    with tempfile.TemporaryDirectory(prefix="openafm-apple-sdk-") as scratch:
        source = open_source(given, Path(scratch))
        if found.version == source.version and found.is_intact and _is_copy_of(source, found.path):
            return found
        with atomic_folder(site / PACKAGE) as folder:
            shutil.copytree(source.package, folder, ignore=_NOT_INSTALLED, dirs_exist_ok=True)
            (folder / BINDING_MODULE).write_text(_BINDING, "utf-8")
        for other in _records(site):
            shutil.rmtree(other)
        with atomic_folder(site / f"{PACKAGE}-{source.version}.dist-info") as folder:
            _write_record(folder, site, source)
    return status(site)


def uninstall(site_packages: Path | None = None) -> bool:
    """Remove the SDK from an environment. Return False if it was not installed.

    Raises:
        ForeignInstallError: another installer has installed the SDK.
    """
    site = site_packages or _site_packages()
    _require_ours(site)
    folders = [*_records(site), *([site / PACKAGE] if (site / PACKAGE).exists() else [])]
    for folder in folders:
        shutil.rmtree(folder)
    return bool(folders)


def _site_packages() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _records(site: Path) -> list[Path]:
    return sorted(site.glob(f"{PACKAGE}-*.dist-info"))


def _require_ours(site: Path) -> SdkStatus:
    found = status(site)
    if found.installer is not None and not found.is_ours:
        raise ForeignInstallError(
            f"{found.path} was installed by {found.installer} and uses Apple's framework;"
            " remove it first: pip uninstall apple-fm-sdk"
        )
    return found


def _owner_of_leftover(site: Path) -> str | None:
    """Return the installer of a package folder without metadata: openafm if our process was killed, else another one."""
    if not (site / PACKAGE).exists():
        return None
    binding = site / PACKAGE / BINDING_MODULE
    return _INSTALLER if not binding.is_file() or binding.read_text("utf-8") == _BINDING else "another installer"


def _is_copy_of(source: SdkSource, package: Path) -> bool:
    return all(
        (package / path.name).is_file() and (package / path.name).read_bytes() == path.read_bytes()
        for path in source.package.glob("*.py")
        if path.name != BINDING_MODULE
    )


def _is_intact(record: Path) -> bool:
    try:
        with (record / "RECORD").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
        return all(not digest or _digest(record.parent / name) == digest for name, digest, _ in rows)
    except (OSError, ValueError):
        return False


def _write_record(folder: Path, site: Path, source: SdkSource) -> None:
    """Write the metadata of an installed distribution, so that pip lists and uninstalls it."""
    (folder / "METADATA").write_text(source.metadata, "utf-8")
    (folder / "INSTALLER").write_text(_INSTALLER + "\n", "utf-8")
    (folder / "licenses").mkdir()
    for license_file in source.root.glob("LICENSE*"):
        shutil.copy(license_file, folder / "licenses")
    final = f"{PACKAGE}-{source.version}.dist-info"
    installed = [(path, path.relative_to(site).as_posix()) for path in sorted((site / PACKAGE).rglob("*")) if path.is_file()]
    installed += [
        (path, f"{final}/{path.relative_to(folder).as_posix()}") for path in sorted(folder.rglob("*")) if path.is_file()
    ]
    with (folder / "RECORD").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows((name, _digest(path), path.stat().st_size) for path, name in installed)
        writer.writerow((f"{final}/RECORD", "", ""))


def _digest(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
