"""The bundles of this machine, their aliases, their last use, and the default model."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path

from openafm.bundle.errors import BundleError, BundleNotFoundError
from openafm.core.config import nearest
from openafm.core.errors import UsageError
from openafm.core.files import check_written, data_home, write_json

SHIPPED_NAME = "nano"
FILE_PATTERNS = (
    *("config.json", "tokenizer.json", "chat_template.json", "signature.json", "card.md", "data.json"),
    *("model.safetensors", "model-*.safetensors"),
    *("recovery.fmadapter/metadata.json", "recovery.fmadapter/adapter_weights.safetensors"),
    *("reader/reader.json", "reader/reader.safetensors"),
    *("ranker/ranker.json", "ranker/ranker.safetensors", "spans/spans.json", "spans/spans.safetensors"),
    *("reader/pages.fmadapter/metadata.json", "reader/pages.fmadapter/adapter_weights.safetensors"),
)
"""Patterns of all files that a bundle may have; a folder with others is neither removed nor replaced."""
SHIPPED_HOME = Path(__file__).parents[1] / "shipped"  # package data: read-only


def bundles_home() -> Path:
    """Return the folder of this user's bundles."""
    return data_home() / "bundles"


def bundle_place(name: str) -> Path:
    """Return the folder of the bundle with this name, which may not exist.

    Raises:
        UsageError: the name is not a plain folder name.
    """
    if name.startswith(".") or not re.fullmatch(r"[\w.+-]+", name):
        raise UsageError(f"'{name}' cannot name a bundle; use letters, digits, '.', '_', '+' and '-', and no '.' first")
    return bundles_home() / name


def list_bundles() -> list[Path]:
    """Return this user's bundles, newest first."""
    folders = [file.parent for file in bundles_home().glob("*/config.json") if not file.parent.name.startswith(".")]
    return sorted(folders, key=lambda folder: (folder / "config.json").stat().st_mtime_ns, reverse=True)


def shipped_bundle() -> Path | None:
    """Return the bundle that ships with the package, None in an installation without it."""
    shipped = SHIPPED_HOME / SHIPPED_NAME
    return shipped if (shipped / "config.json").is_file() else None


def find_bundle(name_or_path: str | Path) -> Path:
    """Return the folder of a bundle, given by path, name or alias: one of this user's bundles, else the shipped one.

    Raises:
        BundleNotFoundError: there is no such bundle; the message has the nearest name.
        BundleError: the path is a folder without config.json.
    """
    path = Path(name_or_path)
    # A name takes precedence over a folder of the same name, such as the run folder of the bundle.
    if path.name == str(name_or_path):
        named = bundles_home() / path
        if (named / "config.json").is_file():
            return named
        shipped = shipped_bundle()
        if shipped is not None and shipped.name == path.name:
            return shipped
        if (aliased := aliases().get(path.name)) is not None:
            return find_bundle(aliased)
    if (path / "config.json").is_file():
        return path
    if path.is_dir():
        raise BundleError(f"{path} is not a bundle: it has no config.json")
    known = [*(folder.name for folder in (*list_bundles(), shipped_bundle()) if folder is not None), *aliases()]
    hint = nearest(str(name_or_path), known) if known else "; there are none yet, `openafm quickstart` trains one"
    raise BundleNotFoundError(f"no bundle '{name_or_path}' on this machine{hint}")


def choose_model(name_or_path: str | Path) -> Path:
    """Make a bundle this user's default model and return its folder.

    The shipped bundle is stored by name, because its path changes with environment and Python version.
    """
    path = find_bundle(name_or_path).resolve()
    shipped = shipped_bundle()
    is_shipped = shipped is not None and path == shipped.resolve()
    write_json(_choice_file(), {"shipped": SHIPPED_NAME} if is_shipped else {"bundle": str(path)})
    return path


def remove_bundle(name: str) -> Path:
    """Remove a bundle of this user and return the folder it had. If it was the default model, the choice is removed too.

    Raises:
        BundleNotFoundError: this user has no bundle of this name; the message has the nearest name.
        UsageError: the name is not a plain folder name, or that of the shipped bundle.
        ForeignFilesError: the folder has files that openafm did not write; nothing is removed.
    """
    place = bundle_place(name)
    if not (place / "config.json").is_file():
        shipped = shipped_bundle()
        if shipped is not None and shipped.name == name:
            raise UsageError(
                f"'{name}' is part of the package and cannot be removed; `openafm use NAME` chooses another model"
            )
        known = [folder.name for folder in list_bundles()]
        hint = nearest(name, known) if known else ""
        raise BundleNotFoundError(f"no bundle '{name}' in {bundles_home()}{hint}")
    if not place.is_symlink():
        check_written(place, FILE_PATTERNS)
    with contextlib.suppress(BundleError, BundleNotFoundError):
        if _chosen() == place.resolve():
            _choice_file().unlink()
    if place.is_symlink():
        place.unlink()
    else:
        shutil.rmtree(place)
    kept = {alias: target for alias, target in aliases().items() if target != name}
    if len(kept) < len(aliases()):
        write_json(_aliases_file(), kept)
    _use_file(name).unlink(missing_ok=True)
    return place


def aliases() -> dict[str, str]:
    """Return the names of bundles by alias.

    Raises:
        BundleError: the file of aliases is damaged.
    """
    file = _aliases_file()
    if not file.is_file():
        return {}
    try:
        return {str(alias): str(name) for alias, name in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError) as error:
        raise BundleError(f"{file} is damaged ({error}); remove it to start without aliases") from error


def set_alias(alias: str, name: str | None) -> None:
    """Let `alias` stand for the bundle `name` in every command; None removes the alias.

    Raises:
        UsageError: the alias is not a plain name, is the name of a bundle, or does not exist.
        BundleNotFoundError: there is no such bundle.
    """
    place, known = bundle_place(alias), aliases()
    if name is None:
        if alias not in known:
            raise UsageError(f"there is no alias '{alias}'{nearest(alias, list(known))}")
        del known[alias]
    else:
        shipped = shipped_bundle()
        if (place / "config.json").is_file() or (shipped is not None and shipped.name == alias):
            raise UsageError(f"'{alias}' is the name of a bundle; choose another alias")
        found = find_bundle(name)
        if found.parent not in (bundles_home(), SHIPPED_HOME):
            raise UsageError(f"{found} is not in {bundles_home()}; aliases name bundles by name")
        known[alias] = found.name
    write_json(_aliases_file(), known)


def record_use(path: Path) -> None:
    """Store that a bundle of this machine is used now. A read-only data folder is ignored: the record changes no answer."""
    if path.parent not in (bundles_home(), SHIPPED_HOME):
        return
    with contextlib.suppress(OSError):
        _use_file(path.name).parent.mkdir(parents=True, exist_ok=True)
        _use_file(path.name).touch()


def last_use(name: str) -> float | None:
    """Return when an engine was last opened for a bundle, in seconds since 1970; None if never."""
    file = _use_file(name)
    return file.stat().st_mtime if file.is_file() else None


def _aliases_file() -> Path:
    return data_home() / "aliases.json"


def _use_file(name: str) -> Path:
    return data_home() / "last-use" / name


def resolve_model() -> Path:
    """Return the default model: the chosen bundle, else the shipped one, else the newest local one.

    Raises:
        BundleNotFoundError: there is no bundle, or the chosen one no longer exists.
    """
    default = _chosen() or shipped_bundle() or next(iter(list_bundles()), None)
    if default is None:
        raise BundleNotFoundError(
            "there is no model on this machine yet; `openafm quickstart` trains a small one in minutes"
        )
    return default


def _chosen() -> Path | None:
    file = _choice_file()
    if not file.is_file():
        return None
    try:
        choice = json.loads(file.read_text(encoding="utf-8"))
        chosen = SHIPPED_HOME / choice["shipped"] if "shipped" in choice else Path(choice["bundle"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file} is damaged ({error}); run `openafm use NAME` again") from error
    if not (chosen / "config.json").is_file():
        raise BundleNotFoundError(f"the chosen bundle {chosen} no longer exists; choose another with `openafm use NAME`")
    return chosen


def _choice_file() -> Path:
    return data_home() / "model.json"
