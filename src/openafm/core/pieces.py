"""A folder as a few files of bounded size, for ways that carry only such files. No format of its own: a tar archive in
pieces, and their digests as `sha256sum` writes them.

PIECES/  bundles.tar.00  bundles.tar.01 ...  SHA256SUMS

    sha256sum -c SHA256SUMS && cat bundles.tar.* | tar x    # does what `join_pieces` does
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from glob import escape
from pathlib import Path
from typing import IO, cast

from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder, check_written, file_digest
from openafm.core.regular_files import read_document

SUMS = "SHA256SUMS"


class PieceError(OpenAFMError):
    """Pieces are missing or damaged."""


def write_pieces(folder: Path, pieces: Path, piece_bytes: int) -> list[Path]:
    """Write the content of `folder` as files of at most `piece_bytes` into the folder `pieces`, atomically."""
    with atomic_folder(pieces) as temporary:
        stream = _Pieces(temporary, f"{folder.name}.tar", piece_bytes)
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="w|", bufsize=1 << 20) as archive:
            archive.add(folder, arcname=".")
        stream.close()
        sums = "".join(f"{file_digest(file)}  {file.name}\n" for file in stream.files)
        (temporary / SUMS).write_text(sums, encoding="utf-8")
    return [pieces / file.name for file in stream.files]


def join_pieces(pieces: Path, folder: Path) -> list[Path]:
    """Write the folder of `write_pieces` to `folder`, atomically, and return what it holds.

    An existing folder is replaced if it holds only files with the names of the new ones.

    Raises:
        PieceError: a piece is missing or damaged; `folder` is unchanged.
        ForeignFilesError: `folder` holds other files, or is a symbolic link; it is unchanged.
    """
    files = [_checked(pieces, line) for line in _sums(pieces)]
    try:
        stream = cast("IO[bytes]", _Joined(files))
        with atomic_folder(folder) as temporary, tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(temporary, filter="data")
            if folder.exists():
                check_written(folder, [escape(path.relative_to(temporary).as_posix()) for path in temporary.rglob("*")])
    except tarfile.TarError as error:
        raise PieceError(f"the files of {pieces} are not a whole archive ({error}); fetch them again") from error
    return sorted(folder.iterdir())


def _sums(pieces: Path) -> list[str]:
    try:
        lines = read_document(pieces / SUMS).decode().splitlines()
    except FileNotFoundError:
        raise PieceError(f"{pieces} has no {SUMS}; name the folder with all files that came back") from None
    except UnicodeDecodeError:
        raise PieceError(f"{pieces / SUMS} is not UTF-8 text; fetch it again") from None
    if not lines:
        raise PieceError(f"{pieces / SUMS} is empty; fetch it again")
    return lines


def _checked(pieces: Path, line: str) -> Path:
    digest, _, name = line.partition("  ")
    file = pieces / name
    if Path(name).name != name or not file.is_file():
        raise PieceError(f"{SUMS} lists {name!r}, which {pieces} does not have; fetch it again")
    if file_digest(file) != digest:
        raise PieceError(f"{file} has other bytes than {SUMS} lists; fetch it again")
    return file


class _Pieces:
    """A stream to write, which starts a new file after each `piece_bytes`."""

    def __init__(self, folder: Path, name: str, piece_bytes: int) -> None:
        self._folder, self._name, self._piece_bytes, self._left = folder, name, piece_bytes, 0
        self.files: list[Path] = []
        self._file: io.BufferedWriter | None = None

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if self._file is None or not self._left:
                self.close()
                self.files.append(self._folder / f"{self._name}.{len(self.files):02}")
                self._file, self._left = self.files[-1].open("wb"), self._piece_bytes
            written = self._file.write(view[: self._left])
            self._left -= written
            view = view[written:]
        return len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Joined:
    """A stream to read, over several files."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files, self._data = list(files), memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._data and self._files:
            self._data = memoryview(self._files.pop(0).read_bytes())
        data = self._data[:size]
        self._data = self._data[len(data) :]
        return bytes(data)
