"""Files whose digests were compared before, by this process or by another one on this machine.

A marker in the cache folder names the file's path, size, inode, times and digest. So each machine reads a shard for its
digest once, not once per rank and restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path

from openafm.core.files import cache_home

RECENT_SECONDS = 2.0
"""A file that changed less than this ago gets no marker: its times do not tell a further change in the same clock tick."""


class VerifiedFiles:
    """Remember verified files, in this process and in the cache folder."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._folder = cache_home() / "verified"

    def has(self, path: Path, sha256: str) -> bool:
        """Return True if the file was compared with this digest and has not changed since."""
        if path.name in self._names:
            return True
        marker = self._marker(path, sha256)
        if marker is None or not marker.exists():
            return False
        self._names.add(path.name)
        return True

    def add(self, path: Path, sha256: str) -> None:
        """Remember a file that equals its digest. A cache folder that cannot be written is not used."""
        self._names.add(path.name)
        marker = self._marker(path, sha256)
        if marker is not None:
            with contextlib.suppress(OSError):
                marker.parent.mkdir(parents=True, exist_ok=True)
                marker.touch()

    def _marker(self, path: Path, sha256: str) -> Path | None:
        """Return the marker of the file as it is now; None if it is missing or changed just now."""
        try:
            found = path.stat()
        except OSError:
            return None
        if time.time() - max(found.st_mtime, found.st_ctime) < RECENT_SECONDS:
            return None
        state = (str(path.absolute()), found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, sha256)
        return self._folder / hashlib.sha256(repr(state).encode()).hexdigest()
