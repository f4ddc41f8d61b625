"""Where bundles live on this machine, and which one answers when nobody names one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from openafm.bundle.errors import BundleError, BundleNotFoundError
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.core.files import data_home, write_json

SHIPPED_NAME = "nano"
SHIPPED_HOME = Path(__file__).parents[1] / "shipped"  # package data: read, never written


def bundles_home() -> Path:
    """The folder that holds this user's bundles by name."""
    return data_home() / "bundles"


def bundle_place(name: str) -> Path:
    """Where a bundle of this name lives, or would.

    Raises:
        UsageError: the name is no plain folder name, and might lead elsewhere.
    """
    if name.startswith(".") or not re.fullmatch(r"[\w.+-]+", name):
        raise UsageError(f"'{name}' is no name for a bundle; use letters, digits, '.', '_', '+' and '-'")
    return bundles_home() / name


def list_bundles() -> list[Path]:
    """The local bundles, newest first."""
    folders = [file.parent for file in bundles_home().glob("*/config.json") if not file.parent.name.startswith(".")]
    return sorted(folders, key=lambda folder: (folder / "config.json").stat().st_mtime_ns, reverse=True)


def shipped_bundle() -> Path | None:
    """The bundle that comes with the package, None in an installation that was stripped of it."""
    shipped = SHIPPED_HOME / SHIPPED_NAME
    return shipped if (shipped / "config.json").is_file() else None


def find_bundle(name_or_path: str | Path) -> Path:
    """The folder of a bundle given by path or by its name: of this user's bundles, else of the shipped one.

    Raises:
        BundleNotFoundError: there is none; the message names the nearest.
    """
    path = Path(name_or_path)
    # A name comes before a folder that happens to be called so, such as the run that made the bundle.
    if path.name == str(name_or_path):
        named = bundles_home() / path
        if (named / "config.json").is_file():
            return named
        shipped = shipped_bundle()
        if shipped is not None and shipped.name == path.name:
            return shipped
    if (path / "config.json").is_file():
        return path
    if path.is_dir():
        raise BundleError(f"{path} is not a bundle: it has no config.json")
    known = [folder.name for folder in (*list_bundles(), shipped_bundle()) if folder is not None]
    hint = nearest(str(name_or_path), known) if known else "; there are none yet: `openafm quickstart` makes one"
    raise BundleNotFoundError(f"no bundle '{name_or_path}' on this machine{hint}")


def choose_model(name_or_path: str | Path) -> Path:
    """Make a bundle the one that answers from now on, for this user.

    The shipped one is remembered as such and not by its path, which changes with every environment and Python version.
    """
    path = find_bundle(name_or_path).resolve()
    shipped = shipped_bundle()
    is_shipped = shipped is not None and path == shipped.resolve()
    write_json(_choice_file(), {"shipped": SHIPPED_NAME} if is_shipped else {"bundle": str(path)})
    return path


def resolve_model() -> Path:
    """The bundle that answers when none is named: the chosen one, else the shipped one, else the newest local one.

    Raises:
        BundleNotFoundError: there is none, or the chosen one is gone.
    """
    answering = _chosen() or shipped_bundle() or next(iter(list_bundles()), None)
    if answering is None:
        raise BundleNotFoundError(
            "there is no model on this machine yet; `openafm quickstart` trains a small one in minutes"
        )
    return answering


def _chosen() -> Path | None:
    file = _choice_file()
    if not file.is_file():
        return None
    try:
        choice = json.loads(file.read_text(encoding="utf-8"))
        chosen = SHIPPED_HOME / choice["shipped"] if "shipped" in choice else Path(choice["bundle"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file} is not readable ({error}); run `openafm use NAME` again") from error
    if not (chosen / "config.json").is_file():
        raise BundleNotFoundError(f"the chosen bundle {chosen} is gone; choose another with `openafm use NAME`")
    return chosen


def _choice_file() -> Path:
    return data_home() / "model.json"
