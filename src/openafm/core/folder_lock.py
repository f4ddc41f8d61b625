"""The lock of a folder: one process at a time works in it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from openafm.core.errors import OpenAFMError
from openafm.core.regular_files import NotAFileError, regular_descriptor


class FolderInUseError(OpenAFMError):
    """Another process holds the lock of this folder."""


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the exclusive lock of `folder`; the system releases it when the process ends.

    If the block raises, folders that this call created and that hold only the lock file are removed.

    Raises:
        FolderInUseError: another process holds it.
        NotAFileError: the lock file is a link or a device, which would be overwritten through it.
    """
    created = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    with os.fdopen(regular_descriptor(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        if os.fstat(file.fileno()).st_nlink != 1:
            raise NotAFileError(f"{path} is a link to another file; remove it")
        if not _lock(file):
            file.seek(0)
            holder = file.read(20).decode("ascii", "replace").strip() or "unknown"
            raise FolderInUseError(
                f"{folder} is in use by process {holder}; wait for it to end or choose another output folder"
            )
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        try:
            yield
        except BaseException:
            _remove_unused(path, created)
            raise


def _remove_unused(lock: Path, created: Sequence[Path]) -> None:
    """Remove the created folders around a lock file, from the innermost, up to the first one with other content."""
    if not created or list(lock.parent.iterdir()) != [lock]:
        return
    with contextlib.suppress(OSError):  # another process has put a file there, or the system does not remove open files
        lock.unlink()
        for folder in created:
            folder.rmdir()


def _lock(file: BinaryIO) -> bool:
    """Take the lock of an open file; return False if another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(1 << 30)  # a locked range is not readable there, and other processes read the holder's number
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True
