"""Files that are whole or absent: written beside their final place and renamed; one writer per folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from openafm.core.errors import OpenAFMError

_EDQUOT = getattr(errno, "EDQUOT", errno.ENOSPC)  # Windows has no quotas


class OutOfSpaceError(OpenAFMError):
    """The disk filled up while writing; what stood before is untouched."""


class NoFileError(OpenAFMError, FileExistsError):
    """What stands where a file shall be is a folder or a device."""


class FolderInUseError(OpenAFMError):
    """Another process holds the lock of this folder."""


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success flush it to disk and rename it over `path`.

    Raises:
        NoFileError: a folder or a device stands there.
        OutOfSpaceError: the disk is full. The temporary file is removed and `path` is as it was.
    """
    if path.exists() and not path.is_file():
        raise NoFileError(f"{path} is there and is no file; name another")
    temporary = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        _raise_translated(error, path)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success put it in the place of `path`, else remove it.

    A process killed half-way leaves the old folder whole; a leftover temporary folder starts with a dot.

    Raises:
        OutOfSpaceError: the disk is full. The temporary folder is removed and `path` is as it was.
    """
    temporary = _beside(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        _flush(temporary)
        _put_in_place(temporary, path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _raise_translated(error, path)


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """For a file that grows line by line: report a full disk while the block runs as `OutOfSpaceError` naming `path`."""
    try:
        yield
    except Exception as error:
        _raise_translated(error, path)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the only lock of `folder` while the block runs; the system drops it when the process dies.

    Raises:
        FolderInUseError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+") as file:
        if not _lock(file):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise FolderInUseError(
                f"{folder} is in use by process {holder}; wait for it to end or choose another output folder"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_file(path, "w") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        retired = _beside(path)
        os.replace(path, retired)
        try:
            os.replace(temporary, path)
        except BaseException:
            os.replace(retired, path)
            raise
        shutil.rmtree(retired)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system cannot (then there is a moment with neither in place)."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    at_cwd, exchange = -100, 2
    return int(rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange)) == 0


def _beside(path: Path) -> Path:
    """A hidden name of its own beside `path`. What is made under it has the permissions that the user's umask gives."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}"


def _lock(file: IO[Any]) -> bool:
    """Take the lock of an open file; False where another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(1 << 30)  # locked bytes cannot be read there, and the holder's number must be
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            return False
        raise
    return True


def _flush(path: Path) -> None:
    if sys.platform == "win32":
        return  # cannot flush what is open for reading, nor folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_translated(error: BaseException, path: Path) -> NoReturn:
    """Raise `error` again, as `OutOfSpaceError` where a full disk is behind it."""
    # safetensors reports the system's errors as text.
    told = (f"os error {number})" in str(error) for number in (errno.ENOSPC, _EDQUOT))
    if error.errno in (errno.ENOSPC, _EDQUOT) if isinstance(error, OSError) else any(told):
        raise OutOfSpaceError(
            f"no space left on the disk while writing {path}; free some and run the command again"
        ) from error
    raise error
