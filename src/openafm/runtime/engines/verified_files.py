"""Verify the digests of bundles and adapters once, as long as their files do not change.

Adapters are verified once per process, bundles once per machine and week.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.core.verified_files import compare_once

RECHECK_S = 7 * 86_400


def verify_once(part: Bundle | AdapterPackage) -> None:
    """Verify every byte of a bundle or adapter, unless the same files were verified before: a gigabyte takes a second.

    Raises:
        OpenAFMError: a file differs from the signed one.
    """
    files = [path for path in sorted(part.path.rglob("*")) if path.is_file()]
    digest = part.signature if isinstance(part, Bundle) else part.digest
    state = digest, str(part.path.resolve()), *(_state(path) for path in files)
    with _lock:
        if state in _verified:
            return
    if isinstance(part, Bundle):
        compare_once(digest, files, part.verify, most_age_s=RECHECK_S)
    else:
        part.verify()
    with _lock:
        _verified.add(state)


def _state(path: Path) -> tuple[object, ...]:
    """Return path, size, times and inode of a file. Programs cannot set the change time."""
    about = path.stat()
    return str(path), about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_dev, about.st_ino


def _reset_lock() -> None:
    global _lock
    _lock = threading.Lock()


_verified: set[tuple[object, ...]] = set()
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)  # another thread may have held it
