"""What is in the library: names, aliases, sizes, numerics and last use of bundles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from openafm.bundle.bundle import Bundle
from openafm.bundle.errors import BundleNotFoundError
from openafm.bundle.store import FILE_PATTERNS, aliases, last_use, list_bundles, resolve_model, shipped_bundle
from openafm.core.errors import OpenAFMError


@dataclass(frozen=True, kw_only=True)
class LibraryEntry:
    """A bundle of this machine.

    Attributes:
        bundle: the opened bundle; None if it cannot be opened, then `problem` has the reason.
        num_bytes: bytes on disk.
        last_used: when an engine was last opened, in seconds since 1970.
        is_current: whether commands use it by default.
    """

    path: Path
    origin: Literal["local", "shipped"]
    bundle: Bundle | None
    problem: str | None
    num_bytes: int
    aliases: tuple[str, ...]
    last_used: float | None
    is_current: bool


def library_entries() -> list[LibraryEntry]:
    """Return the bundles of this user, newest first, then the shipped one."""
    try:
        current = resolve_model().resolve()
    except BundleNotFoundError:
        current = None
    named, shipped = aliases(), shipped_bundle()
    found: list[tuple[Path, Literal["local", "shipped"]]] = [(path, "local") for path in list_bundles()]
    if shipped is not None:
        found.append((shipped, "shipped"))
    return [_entry(path, origin, named, path.resolve() == current) for path, origin in found]


def _entry(path: Path, origin: Literal["local", "shipped"], named: dict[str, str], is_current: bool) -> LibraryEntry:
    bundle, problem = None, None
    try:
        bundle = Bundle(path)
    except OpenAFMError as error:
        problem = str(error)
    return LibraryEntry(
        path=path,
        origin=origin,
        bundle=bundle,
        problem=problem,
        num_bytes=num_bytes(path),
        aliases=tuple(sorted(alias for alias, name in named.items() if name == path.name)),
        last_used=last_use(path.name),
        is_current=is_current,
    )


def num_bytes(path: Path) -> int:
    """Return the bytes of a bundle's files."""
    return sum(file.stat().st_size for pattern in FILE_PATTERNS for file in path.glob(pattern) if file.is_file())
