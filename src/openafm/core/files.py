"""Atomic files and folders, and folders that may be replaced."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn

from openafm.core.errors import OpenAFMError
from openafm.core.folder_lock import FolderInUseError, folder_lock
from openafm.core.regular_files import NO_FOLLOW, NotAFileError, regular_descriptor

_EDQUOT = getattr(errno, "EDQUOT", errno.ENOSPC)  # Windows has no quotas


class OutOfSpaceError(OpenAFMError):
    """The disk is full; the previous content of the destination is unchanged."""


class ForeignFilesError(OpenAFMError):
    """A folder that would be removed or replaced holds files that openafm did not write."""


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb", permissions: int | None = None) -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success flush it to disk and rename it to `path`.

    `permissions`, such as 0o600 for private data, apply from the moment of creation. By default an existing file keeps its
    permissions and a new one gets those of the umask.

    Raises:
        NotAFileError: `path` is a folder or a device.
        OutOfSpaceError: the disk is full. The temporary file is removed and `path` is unchanged.
    """
    if path.exists() and not path.is_file():
        raise NotAFileError(f"{path} exists and is not a regular file; choose another path")
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        created = 0o666 if permissions is None else permissions
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, created)
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as file:
            if permissions is None and path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))  # noqa: PTH101
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

    The files get the permissions of the umask, whatever the library that wrote them chose. A process killed meanwhile leaves
    the old folder intact; the name of a leftover temporary folder starts with a dot.

    Raises:
        OutOfSpaceError: the disk is full. The temporary folder is removed and `path` is unchanged.
    """
    temporary = _temporary(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _publish(temporary, path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _raise_translated(error, path)


@contextlib.contextmanager
def resumable_folder(path: Path, key: str, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield a temporary folder beside `path` as `atomic_folder`, except that it outlives a kill or Ctrl-C.

    The next call with the same `key` yields it again with the files that it has; with another key it is emptied first.
    `patterns` are the names that the caller writes into it. After an error it is removed.

    Raises:
        FolderInUseError: another process is writing it.
        ForeignFilesError: the temporary folder has other files than `patterns`.
        OutOfSpaceError: the disk is full. The temporary folder is removed and `path` is unchanged.
    """
    temporary = path.parent / f".{path.name}.partial"
    key_file, own = temporary / ".key", (*patterns, ".key", ".lock")
    try:
        with folder_lock(temporary):
            if not key_file.exists() or key_file.read_text() != key:
                check_written(temporary, own)
                for file in [file for file in temporary.rglob("*") if file.is_file() and file.name != ".lock"]:
                    file.unlink()
                key_file.write_text(key)
            yield temporary
            key_file.unlink()
            (temporary / ".lock").unlink()
            _publish(temporary, path)
    except Exception as error:
        if not isinstance(error, FolderInUseError | ForeignFilesError):
            shutil.rmtree(temporary, ignore_errors=True)
        _raise_translated(error, path)


@contextlib.contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Report a full disk inside the block as `OutOfSpaceError` naming `path`, for files that grow line by line."""
    try:
        yield
    except Exception as error:
        _raise_translated(error, path)


def foreign_files(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Return what a folder holds beside files and folders that match `patterns`, as sorted relative paths.

    A pattern without a slash matches names at the top; subfolders need patterns of their own, such as "draft/*.json".
    """
    known = tuple(patterns)
    folders = {str(parent) for pattern in known for parent in PurePosixPath(pattern).parents}
    found = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not matches(name, known) and not (name in folders and path.is_dir() and not path.is_symlink()):
            found.append(name)
    return sorted(found)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return True if a relative path matches one of the patterns; `*` does not match a slash."""
    return any(name.count("/") == pattern.count("/") and fnmatch(name, pattern) for pattern in patterns)


def check_written(folder: Path, patterns: Sequence[str]) -> None:
    """Check that a folder holds only files matching `patterns`, so that it may be removed or replaced.

    Raises:
        ForeignFilesError: it holds other files, or is a symbolic link.
    """
    if folder.is_symlink():
        raise ForeignFilesError(f"{folder} is a symbolic link; nothing was removed, remove the link yourself")
    foreign = foreign_files(folder, patterns)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ForeignFilesError(
            f"{folder} holds {foreign[0]}{more}, which openafm did not write; nothing was removed, move it elsewhere"
        )


def remove_written(folder: Path, patterns: Sequence[str]) -> None:
    """Remove a folder that holds only files matching `patterns`.

    Raises:
        ForeignFilesError: it holds other files, or is a symbolic link; nothing is removed.
    """
    check_written(folder, patterns)
    shutil.rmtree(folder)


def lines_of(text: str) -> list[str]:
    """Return the lines of a file of JSON lines or of tab-separated cells.

    `str.splitlines` also splits at U+2028 and other characters that JSON strings may hold unescaped.
    """
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_file(path, "w") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hex.

    Raises:
        NotAFileError, OSError: as `read_document`.
    """
    with os.fdopen(regular_descriptor(path, os.O_RDONLY, follows_links=True), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_checksum(path: Path) -> str:
    """Return the CRC-32 of a regular file as `crc32:` and eight hex digits. It finds damage; a digest also proves identity.

    A processor computes it at several GB/s, a SHA-256 at 0.4 GB/s where it has no instructions for that.

    Raises:
        NotAFileError, OSError: as `read_document`.
    """
    checksum = 0
    with os.fdopen(regular_descriptor(path, os.O_RDONLY, follows_links=True), "rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return f"crc32:{checksum:08x}"


def data_home() -> Path:
    """Return the folder of this user's bundles and adapters: `$OPENAFM_HOME`, else the XDG data folder."""
    chosen = os.environ.get("OPENAFM_HOME")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "openafm"


def cache_home() -> Path:
    """Return the folder of files that can be computed or fetched again: `$OPENAFM_CACHE`, else the XDG cache folder."""
    chosen = os.environ.get("OPENAFM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openafm"


def _publish(temporary: Path, path: Path) -> None:
    """Flush a finished folder to disk and put it in the place of `path`."""
    permissions = stat.S_IMODE(temporary.stat().st_mode) & 0o666
    for file in temporary.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(permissions | stat.S_IMODE(file.stat().st_mode) & 0o111)
            _flush(file)
    _flush(temporary)
    _put_in_place(temporary, path)


def _put_in_place(temporary: Path, path: Path) -> None:
    if not path.exists():
        os.replace(temporary, path)
    elif _exchange(temporary, path):
        shutil.rmtree(temporary)
    else:
        retired = _temporary(path)
        os.replace(path, retired)
        try:
            os.replace(temporary, path)
        except BaseException:
            os.replace(retired, path)
            raise
        shutil.rmtree(retired)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one system call; return False where the system has none."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    at_cwd, exchange = -100, 2
    return int(rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange)) == 0


def _temporary(path: Path) -> Path:
    """Return an unused hidden path beside `path`."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}"


def _flush(path: Path) -> None:
    if sys.platform == "win32":
        return  # fsync needs a handle opened for writing there, and folders have none
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_translated(error: BaseException, path: Path) -> NoReturn:
    """Raise `error`, as `OutOfSpaceError` if its cause is a full disk."""
    # safetensors reports the system's errors as text
    as_text = (f"os error {number})" in str(error) for number in (errno.ENOSPC, _EDQUOT))
    if error.errno in (errno.ENOSPC, _EDQUOT) if isinstance(error, OSError) else any(as_text):
        raise OutOfSpaceError(
            f"no space left on the disk while writing {path}; free some and run the command again"
        ) from error
    raise error
