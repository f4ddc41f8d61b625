"""The files of a corpus: in a folder, or in object storage (`stored_files.py`). Arrays are mapped."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from openafm.core.arrays import map_array_file
from openafm.core.files import file_digest
from openafm.core.regular_files import OversizeFilesError, read_document
from openafm.core.verified_files import compare_once
from openafm.data.shards.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    ManifestError,
    ShardDigestError,
    TruncatedShardError,
)

Verification = Literal["all", "first_use", "sizes"]
"""When files are compared with their digests: all of them when the corpus is opened, each before it is first read, or never.
Sizes are compared in any case."""


class ShardFiles(ABC):
    """The files of one corpus. `name` is its folder or address, for messages."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def read_manifest(self) -> bytes:
        """Return the content of the manifest.

        Raises:
            ManifestError: it is missing or cannot be read.
        """

    @abstractmethod
    def check_sizes(self, manifest: Manifest) -> None:
        """Compare the size of every file with the manifest.

        Raises:
            TruncatedShardError: a file is missing or has another size.
        """

    @abstractmethod
    def verify(self, file: FileRecord) -> None:
        """Read a file and compare it with its digest.

        Raises:
            TruncatedShardError, ShardDigestError: it was changed after it was written.
        """

    @abstractmethod
    def array(self, file: FileRecord, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
        """Return an array file, memory-mapped and read-only: of integers, or of `dtype`.

        Raises:
            TruncatedShardError, ShardDigestError: it was changed after it was written.
        """

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Return the folder of the corpus.

        Raises:
            ShardError: the corpus is in object storage.
        """


class LocalFiles(ShardFiles):
    """Files in a folder."""

    def __init__(self, path: Path, verification: Verification = "sizes") -> None:
        super().__init__(str(path))
        self._path = path
        self._compares, self._compared = verification == "first_use", set[str]()

    @property
    def folder(self) -> Path:
        return self._path

    def read_manifest(self) -> bytes:
        file = self._path / MANIFEST
        try:
            return read_document(file)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ManifestError(f"{file} does not exist: {self._path} is not a folder of token shards") from error
        except (OSError, OversizeFilesError) as error:
            raise ManifestError(f"{file} is not the manifest of token shards: {error}") from error

    def check_sizes(self, manifest: Manifest) -> None:
        for shard in manifest.shards:
            for file in shard.files:
                self._check_size(file)

    def verify(self, file: FileRecord) -> None:
        self._check_size(file)
        found = file_digest(self._path / file.name)
        if found != file.sha256:
            raise ShardDigestError(
                f"{self._path / file.name} was changed after it was written: its SHA-256 is {found[:12]}, "
                f"expected {file.sha256[:12]}; copy the corpus again or pack it again"
            )

    def array(self, file: FileRecord, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
        path = self._path / file.name
        if self._compares and file.name not in self._compared:
            compare_once(file.sha256, [path], lambda: self.verify(file))
            self._compared.add(file.name)
        return map_array(path, dtype)

    def _check_size(self, file: FileRecord) -> None:
        path = self._path / file.name
        try:
            num_bytes = path.stat().st_size
        except FileNotFoundError as error:
            raise TruncatedShardError(f"{path} is missing; copy the corpus again or pack it again") from error
        except OSError as error:
            raise TruncatedShardError(f"{path} cannot be read: {error}") from error
        if num_bytes != file.num_bytes:
            raise TruncatedShardError(
                f"{path} has {num_bytes:,} bytes, expected {file.num_bytes:,}; copy the corpus again or pack it again"
            )


def shard_files(location: Path | str, verification: Verification = "sizes") -> ShardFiles:
    """Return the files of a corpus in a folder, or at an address such as `s3://bucket/corpus`.

    A symbolic link to an address stands for it, so that a run folder can refer to object storage.

    Raises:
        ShardError: no library for the address is installed.
    """
    address = address_of(location)
    if address is None:
        return LocalFiles(Path(location), verification)
    from openafm.data.shards.stored_files import StoredFiles

    return StoredFiles(address)


def address_of(location: Path | str) -> str | None:
    """Return the address in object storage that `location` is, or that it links to; None for a folder."""
    if "://" in str(location):
        return str(location)
    if Path(location).is_symlink() and "://" in (target := os.readlink(location)):  # noqa: PTH115 - a Path drops a slash
        return target
    return None


def map_array(path: Path, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """Return an array file, memory-mapped and read-only: of integers, or of `dtype`.

    Raises:
        TruncatedShardError: the file is not such an array or cannot be read.
    """
    try:
        array = map_array_file(path)
    except Exception as error:  # errors of many types
        raise TruncatedShardError(f"{path} is not a whole array file: {error}") from error
    if not isinstance(array, np.ndarray) or (array.dtype.kind not in "ui" if dtype is None else array.dtype != dtype):
        raise TruncatedShardError(f"{path} is not an array of {dtype or 'integers'}")
    return np.asarray(array)  # a plain array: slicing a memmap costs several times more
