"""Atomic files and folders, folder locks, and access to files of untrusted folders."""

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
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NoReturn

from openafm.core.errors import OpenAFMError

_EDQUOT = getattr(errno, "EDQUOT", errno.ENOSPC)  # Windows has no quotas
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | _PLAIN
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO would wait for a writer
MAX_DOCUMENT_BYTES = 256 << 20


class OutOfSpaceError(OpenAFMError):
    """The disk is full; the previous content of the destination is unchanged."""


class NotAFileError(OpenAFMError, FileExistsError):
    """The path is a folder, a device or a symbolic link where a regular file is needed."""


class ForeignFilesError(OpenAFMError):
    """A folder that would be removed or replaced holds files that openafm did not write."""


class FolderInUseError(OpenAFMError):
    """Another process holds the lock of this folder."""


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
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, created)
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
    with os.fdopen(_regular_descriptor(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
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


def open_regular(root: Path, relative: str = "") -> BufferedReader:
    """Open a regular file for reading: the file `root`, or the file `relative` below the folder `root`.

    Below `root` no symbolic link is followed. Neither links nor FIFOs nor devices are opened.

    Raises:
        NotAFileError: the path is not a regular file, or passes through a symbolic link.
        OSError: it does not exist or is not readable.
    """
    path = root
    for part in PurePosixPath(relative).parts:
        path = path / part
        if part == ".." or path.is_symlink():
            raise NotAFileError(f"{path} is not a regular file; links are not followed")
    return os.fdopen(_regular_descriptor(path, os.O_RDONLY), "rb")


def read_document(path: Path, max_bytes: int | None = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file, or of a link to one.

    Raises:
        NotAFileError: it is a folder, a FIFO or a device, which would never end.
        OversizeFilesError: it has more than `max_bytes`.
        OSError: it does not exist or is not readable.
    """
    with os.fdopen(_regular_descriptor(path, os.O_RDONLY, follows_links=True), "rb") as file:
        data = file.read() if max_bytes is None else file.read(max_bytes + 1)
    if max_bytes is not None and len(data) > max_bytes:
        raise OversizeFilesError(f"{path} has more than the {max_bytes:,} bytes that are allowed")
    return data


def check_regular(path: Path) -> None:
    """Check that a path is a regular file, or a link to one, for libraries that open it by name.

    Raises:
        NotAFileError, OSError: as `read_document`.
    """
    os.close(_regular_descriptor(path, os.O_RDONLY, follows_links=True))


def copy_files(source: Path, target: Path, names: Sequence[str], max_bytes: int) -> None:
    """Copy regular files, named relative to `source`, into the folder `target`.

    Raises:
        NotAFileError: a name is not a regular file, or passes through a symbolic link.
        OversizeFilesError: the files have more than `max_bytes` together.
    """
    left = max_bytes
    for name in names:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(source, name) as reader, copy.open("xb") as writer:
            while chunk := reader.read(1 << 20):
                left -= len(chunk)
                if left < 0:
                    raise OversizeFilesError(f"{source} has more than the {max_bytes:,} bytes that are allowed")
                writer.write(chunk)


class OversizeFilesError(OpenAFMError):
    """Files are larger than allowed."""


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
    with os.fdopen(_regular_descriptor(path, os.O_RDONLY, follows_links=True), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _regular_descriptor(path: Path, flags: int, *, follows_links: bool = False) -> int:
    try:
        descriptor = os.open(path, flags | (_PLAIN if follows_links else _NO_FOLLOW) | _NO_WAIT, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            why = "its links lead in a circle" if follows_links else "links are not followed"
            raise NotAFileError(f"{path} is not a regular file; {why}") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFileError(f"{path} is not a regular file")
    return descriptor


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
