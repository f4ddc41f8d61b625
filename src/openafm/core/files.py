"""Files that are whole or absent: written beside their final place and renamed; one writer per folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from openafm.core.errors import OpenAFMError


class OutOfSpaceError(OpenAFMError):
    """The disk filled up while writing; what stood before is untouched."""


class FolderInUseError(OpenAFMError):
    """Another process holds the lock of this folder."""


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success flush it to disk and rename it over `path`.

    Raises:
        OutOfSpaceError: the disk is full. The temporary file is removed and `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        raise _translated(error, path) from error


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success put it in the place of `path`, else remove it.

    A process killed half-way leaves the old folder whole; a leftover temporary folder starts with a dot.

    Raises:
        OutOfSpaceError: the disk is full. The temporary folder is removed and `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        _flush(temporary)
        _put_in_place(temporary, path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _translated(error, path) from error


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """For a file that grows line by line: report a full disk while the block runs as `OutOfSpaceError` naming `path`."""
    try:
        yield
    except Exception as error:
        translated = _translated(error, path)
        if translated is error:
            raise
        raise translated from error


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the only lock of `folder` while the block runs; the system drops it when the process dies.

    Raises:
        FolderInUseError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise FolderInUseError(
                f"{folder} is in use by process {holder}; wait for it to end or choose another output folder"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_file(path, "w") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def data_home() -> Path:
    """Where bundles and choices of this user live: `$OPENAFM_HOME`, else the XDG data folder."""
    chosen = os.environ.get("OPENAFM_HOME")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "openafm"


def _put_in_place(temporary: Path, path: Path) -> None:
    if not path.exists():
        os.replace(temporary, path)
    elif _exchange(temporary, path):
        shutil.rmtree(temporary)
    else:
        retired = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
        os.replace(path, retired / path.name)
        os.replace(temporary, path)
        shutil.rmtree(retired)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system cannot (then there is a moment with neither in place)."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    at_cwd, exchange = -100, 2
    return int(rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange)) == 0


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _translated(error: BaseException, path: Path) -> BaseException:
    # safetensors reports the system's errors as text.
    told = (f"os error {number})" in str(error) for number in (errno.ENOSPC, errno.EDQUOT))
    if error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else any(told):
        return OutOfSpaceError(f"no space left on the disk while writing {path}; free some and run the command again")
    return error
