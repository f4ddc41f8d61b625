"""Verify the digests of bundles and adapters once per process, as long as their files do not change."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle


def verify_once(part: Bundle | AdapterPackage) -> None:
    """Verify every byte of a bundle or adapter, unless the same files were verified before: a gigabyte takes a second.

    Raises:
        OpenAFMError: a file differs from the signed one.
    """
    state = _state(part.path)
    with _lock:
        if state in _verified:
            return
    part.verify()
    with _lock:
        _verified.add(state)


def _state(folder: Path) -> tuple[object, ...]:
    """Return path, size, times and inode of every file. The change time cannot be set by programs."""
    entries: list[object] = [str(folder.resolve())]
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            entries.append((path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    return tuple(entries)


def _reset_lock() -> None:
    global _lock
    _lock = threading.Lock()


_verified: set[tuple[object, ...]] = set()
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)  # another thread may have held it
