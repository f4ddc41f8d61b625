"""Files that were compared with their digests before, by this process or another one of this user.

A marker in the cache folder is named by the digest and by path, device, inode, size and times of each file. Programs cannot
set the change time, so a file that was changed since then has no marker.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from openafm.core.native_build import cache_home, check_private, private_folder

RECENT_SECONDS = 2.0
"""A file that changed less than this ago gets no marker: its times do not tell a further change in the same clock tick."""


def compare_once(digest: str, files: Sequence[Path], compare: Callable[[], object], *, most_age_s: float = math.inf) -> None:
    """Call `compare`, unless it returned before for this digest and the same unchanged files.

    A cache folder that cannot be written, or that others may write, only costs time.

    Args:
        compare: reads the files, and raises if they do not have the digest.
        most_age_s: seconds after which files are compared again, because storage can fail without a change of times.
    """
    before = _marker(digest, files)
    if before is not None and _is_valid(before, most_age_s):
        return
    compare()
    if before is not None and before == _marker(digest, files):
        with contextlib.suppress(OSError):
            private_folder(before.parent)
            before.touch()


def _marker(digest: str, files: Sequence[Path]) -> Path | None:
    """Return the marker of the files as they are now; None if one is missing or changed just now.

    Windows has no change time.
    """
    if sys.platform == "win32":
        return None
    state: list[object] = [digest]
    try:
        for path in files:
            about = path.stat()
            if time.time() - max(about.st_mtime, about.st_ctime) < RECENT_SECONDS:
                return None
            times = about.st_mtime_ns, about.st_ctime_ns
            state.append((str(path.absolute()), about.st_dev, about.st_ino, about.st_size, *times))
    except OSError:
        return None
    return cache_home() / "verified" / hashlib.sha256(repr(state).encode()).hexdigest()


def _is_valid(marker: Path, most_age_s: float) -> bool:
    """Return True if a marker was made by this user at most `most_age_s` ago."""
    try:
        check_private(marker.parent)
        return 0 <= time.time() - marker.stat().st_mtime < most_age_s
    except OSError:
        return False
