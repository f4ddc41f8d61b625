"""Where adapters live on this machine: one folder for every name, in it one version for every base.

$OPENAFM_HOME/adapters/NAME/fmadapter-NAME-0123456/  metadata.json  adapter_weights.safetensors  [draft/]
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from openafm.adapters.metadata import adapter_identifier, check_name
from openafm.adapters.package import AdapterPackage, open_adapter
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.core.files import atomic_folder, data_home


class AdapterNotInstalledError(UsageError):
    """No adapter of this name is installed, or none for this base."""


def adapters_home() -> Path:
    """The folder that holds this user's adapters by name."""
    return data_home() / "adapters"


def adapter_place(name: str, base_signature: str) -> Path:
    """Where the adapter of this name for this base is installed, or would be.

    Raises:
        AdapterNameError: the name is none.
    """
    return adapters_home() / check_name(name) / adapter_identifier(name, base_signature)


def installed_adapters(name: str | None = None) -> list[Path]:
    """The folders of the installed adapters, of all names or of one, whole or damaged, in the order of their identifiers.

    Raises:
        AdapterNameError: `name` is none.
    """
    folders = adapters_home().glob(f"{'*' if name is None else check_name(name)}/fmadapter-*")
    return sorted(folder for folder in folders if folder.is_dir())


def find_adapter(name: str, base_signature: str) -> AdapterPackage:
    """The installed adapter of this name for this base.

    Raises:
        AdapterNameError: the name is none.
        AdapterNotInstalledError: none of this name is installed, or none for this base.
        AdapterError: it is damaged.
    """
    place = adapter_place(name, base_signature)
    if place.is_dir():
        adapter = open_adapter(place)
        adapter.check_base(base_signature)
        return adapter
    versions = ", ".join(folder.name for folder in versions_of(name))
    raise AdapterNotInstalledError(
        f"no adapter '{name}' for the base {base_signature} is installed, only {versions}; pull or train one for this base"
    )


def versions_of(name: str) -> list[Path]:
    """The folders of an adapter's installed versions, one or more.

    Raises:
        AdapterNameError: the name is none.
        AdapterNotInstalledError: there are none; the message gives the nearest name.
    """
    found = installed_adapters(name)
    if not found:
        known = sorted({folder.parent.name for folder in installed_adapters()})
        hint = nearest(name, known) if known else "; there are none yet, `openafm adapter pull` gets them"
        raise AdapterNotInstalledError(f"no adapter '{name}' is installed on this machine{hint}")
    return found


def install_adapter(folder: Path) -> AdapterPackage:
    """Copy an adapter, verified, to its place; the version that stands there is replaced, all at once.

    Raises:
        AdapterError: it is damaged.
        AdapterNotFoundError: nothing is there.
        OutOfSpaceError: the disk is full; what was installed still is.
    """
    adapter = open_adapter(folder)
    place = adapter_place(adapter.name, adapter.base_signature)
    with atomic_folder(place) as target:
        shutil.copytree(folder, target, dirs_exist_ok=True)
        open_adapter(target).verify()
    return open_adapter(place)


def remove_adapter(name: str) -> list[Path]:
    """Remove every version of an adapter; returns where they were.

    Raises:
        AdapterNameError: the name is none.
        AdapterNotInstalledError: it is not installed.
    """
    return _removed(versions_of(name))


def remove_obsolete_adapters(base_signatures: Collection[str]) -> list[Path]:
    """Remove the adapters for other bases than these, and what lies in the place of one; returns where they were."""
    known = {signature[:7] for signature in base_signatures}
    return _removed([folder for folder in installed_adapters() if _base_of(folder) not in known])


def _base_of(folder: Path) -> str:
    found = re.fullmatch(r"fmadapter-\w+-([0-9a-f]{7})", folder.name)
    return "" if found is None else found[1]


def _removed(folders: list[Path]) -> list[Path]:
    for folder in folders:
        shutil.rmtree(folder)
        with contextlib.suppress(OSError):  # other versions are in it
            folder.parent.rmdir()
    return folders
