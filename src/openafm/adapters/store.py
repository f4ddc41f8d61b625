"""Installed adapters of this user: one folder per name, with one version per base.

$OPENAFM_HOME/adapters/NAME/fmadapter-NAME-0123456/  metadata.json  adapter_weights.safetensors  [draft/]
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from pathlib import Path

from openafm.adapters.metadata import adapter_identifier, check_name
from openafm.adapters.package import FILE_PATTERNS, AdapterPackage, copy_adapter_files, open_adapter
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.core.files import atomic_folder, check_written, data_home, remove_written


class AdapterNotInstalledError(UsageError):
    """No adapter of this name is installed for this base."""


def adapters_home() -> Path:
    """Return the folder of this user's adapters."""
    return data_home() / "adapters"


def adapter_place(name: str, base_signature: str) -> Path:
    """Return the folder where the adapter of this name for this base is installed.

    Raises:
        AdapterNameError: the name is invalid.
    """
    return adapters_home() / check_name(name) / adapter_identifier(name, base_signature)


def installed_adapters(name: str | None = None) -> list[Path]:
    """Return the folders of the installed adapters of all names or of one, damaged ones included, in order.

    Raises:
        AdapterNameError: the name is invalid.
    """
    folders = adapters_home().glob(f"{'*' if name is None else check_name(name)}/fmadapter-*")
    return sorted(folder for folder in folders if folder.is_dir())


def find_adapter(name: str, base_signature: str) -> AdapterPackage:
    """Return the installed adapter of this name for this base.

    Raises:
        AdapterNameError: the name is invalid.
        AdapterNotInstalledError: no adapter of this name is installed for this base.
        AdapterError: the adapter is damaged.
    """
    place = adapter_place(name, base_signature)
    if place.is_dir():
        adapter = open_adapter(place)
        adapter.check_base(base_signature)
        return adapter
    versions = ", ".join(folder.name for folder in versions_of(name))
    raise AdapterNotInstalledError(
        f"no adapter '{name}' is installed for the base {base_signature}, only {versions}; pull or train one for this base"
    )


def versions_of(name: str) -> list[Path]:
    """Return the folders of an adapter's installed versions, at least one.

    Raises:
        AdapterNameError: the name is invalid.
        AdapterNotInstalledError: none is installed; the message gives the nearest name.
    """
    found = installed_adapters(name)
    if not found:
        known = sorted({folder.parent.name for folder in installed_adapters()})
        hint = nearest(name, known) if known else "; none are installed, `openafm adapter pull` or `install` adds one"
        raise AdapterNotInstalledError(f"no adapter '{name}' is installed{hint}")
    return found


def install_adapter(folder: Path) -> AdapterPackage:
    """Copy an adapter to its installed folder and verify it; an installed version is replaced atomically.

    Only the files of an adapter are copied; links are not followed.

    Raises:
        AdapterError: the adapter is damaged, or one of its files is a link or too large.
        AdapterNotFoundError: the folder does not exist.
        ForeignFilesError: the installed folder holds files that openafm did not write.
        OutOfSpaceError: the disk is full; the installed version is unchanged.
    """
    adapter = open_adapter(folder)
    place = adapter_place(adapter.name, adapter.base_signature)
    if place.exists():
        check_written(place, FILE_PATTERNS)
    with atomic_folder(place) as target:
        copy_adapter_files(folder, target)
        open_adapter(target).verify()
    return open_adapter(place)


def remove_adapter(name: str) -> list[Path]:
    """Remove every version of an adapter and return their folders.

    Raises:
        AdapterNameError: the name is invalid.
        AdapterNotInstalledError: it is not installed.
        ForeignFilesError: a folder holds files that openafm did not write; nothing is removed.
    """
    return _removed(versions_of(name))


def remove_obsolete_adapters(base_signatures: Collection[str]) -> list[Path]:
    """Remove the adapters for other bases than these, damaged ones included, and return their folders.

    Raises:
        ForeignFilesError: a folder holds files that openafm did not write; nothing is removed.
    """
    known = {signature[:7] for signature in base_signatures}
    return _removed([folder for folder in installed_adapters() if _base_of(folder) not in known])


def _base_of(folder: Path) -> str:
    found = re.fullmatch(r"fmadapter-\w+-([0-9a-f]{7})", folder.name)
    return "" if found is None else found[1]


def _removed(folders: list[Path]) -> list[Path]:
    for folder in folders:
        check_written(folder, FILE_PATTERNS)
    for folder in folders:
        remove_written(folder, FILE_PATTERNS)
        with contextlib.suppress(OSError):  # it holds other versions
            folder.parent.rmdir()
    return folders
