"""Regular files of untrusted folders: opened without following links, read within limits."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path, PurePosixPath

from openafm.core.errors import OpenAFMError

_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | _PLAIN
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO would wait for a writer
MAX_DOCUMENT_BYTES = 256 << 20


class NotAFileError(OpenAFMError, FileExistsError):
    """The path is a folder, a device or a symbolic link where a regular file is needed."""


class OversizeFilesError(OpenAFMError):
    """Files are larger than allowed."""


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
    return os.fdopen(regular_descriptor(path, os.O_RDONLY), "rb")


def read_document(path: Path, max_bytes: int | None = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file, or of a link to one.

    Raises:
        NotAFileError: it is a folder, a FIFO or a device, which would never end.
        OversizeFilesError: it has more than `max_bytes`.
        OSError: it does not exist or is not readable.
    """
    with os.fdopen(regular_descriptor(path, os.O_RDONLY, follows_links=True), "rb") as file:
        data = file.read() if max_bytes is None else file.read(max_bytes + 1)
    if max_bytes is not None and len(data) > max_bytes:
        raise OversizeFilesError(f"{path} has more than the {max_bytes:,} bytes that are allowed")
    return data


def check_regular(path: Path) -> None:
    """Check that a path is a regular file, or a link to one, for libraries that open it by name.

    Raises:
        NotAFileError, OSError: as `read_document`.
    """
    os.close(regular_descriptor(path, os.O_RDONLY, follows_links=True))


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


def regular_descriptor(path: Path, flags: int, *, follows_links: bool = False) -> int:
    """Open a regular file with `flags` of `os.open` and return its descriptor; errors as `open_regular`."""
    try:
        descriptor = os.open(path, flags | (_PLAIN if follows_links else NO_FOLLOW) | _NO_WAIT, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            why = "its links lead in a circle" if follows_links else "links are not followed"
            raise NotAFileError(f"{path} is not a regular file; {why}") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFileError(f"{path} is not a regular file")
    return descriptor
