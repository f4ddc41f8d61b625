"""A corpus in object storage, read through fsspec: `s3://`, `gs://`, `memory://` and every other address that it knows.

A file is fetched when it is first read, compared with its digest while it arrives, and kept in the cache folder under its
digest. The cache is bounded: before a file is added, those that were not read for the longest time are removed. A process
that has a removed file mapped keeps reading it; its space is freed when the last process closes it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from openafm.core.errors import UsageError
from openafm.core.files import atomic_file, cache_home
from openafm.core.regular_files import MAX_DOCUMENT_BYTES
from openafm.data.shards.files import ShardFiles, map_array
from openafm.data.shards.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    ManifestError,
    ShardDigestError,
    ShardError,
    TruncatedShardError,
)

DEFAULT_CACHE_GB = 100.0
BLOCK_BYTES = 8 << 20
FETCH_ATTEMPTS = 3
"""How often a file is fetched that another process removes from the cache before it is mapped."""


class ObjectStorageError(ShardError):
    """An address in object storage cannot be read."""


class CacheSizeError(UsageError):
    """`OPENAFM_CACHE_GB` is not a size, or a file does not fit into it."""


class StoredFiles(ShardFiles):
    """The files of a corpus below an address.

    Raises:
        ObjectStorageError: fsspec, or the library for this kind of address, is not installed.
        CacheSizeError: `OPENAFM_CACHE_GB` is not a size.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address.rstrip("/"))
        try:
            from fsspec.core import url_to_fs

            self._system, self._root = url_to_fs(self.name)
        except (ImportError, ValueError) as error:
            raise ObjectStorageError(
                f"{address} cannot be read: {error}; install openafm[remote] and fsspec's library for this kind of address, "
                "such as s3fs for s3://"
            ) from error
        self._cache = FileCache(cache_home() / "shards", cache_bytes())

    @property
    def folder(self) -> Path:
        raise ShardError(f"{self.name} is in object storage, and images are read from a folder; copy the corpus to a disk")

    def read_manifest(self) -> bytes:
        try:
            with self._system.open(f"{self._root}/{MANIFEST}", "rb") as file:
                content: bytes = file.read(MAX_DOCUMENT_BYTES + 1)
        except FileNotFoundError as error:
            raise ManifestError(f"{self.name}/{MANIFEST} does not exist: no token shards are at this address") from error
        except Exception as error:  # each storage library has errors of its own
            raise ObjectStorageError(f"{self.name}/{MANIFEST} cannot be read: {error}") from error
        if len(content) > MAX_DOCUMENT_BYTES:
            raise ManifestError(f"{self.name}/{MANIFEST} has more than the {MAX_DOCUMENT_BYTES:,} bytes that are allowed")
        return content

    def check_sizes(self, manifest: Manifest) -> None:
        try:
            listed = self._system.ls(self._root, detail=True)
        except Exception as error:
            raise ObjectStorageError(f"{self.name} cannot be listed: {error}") from error
        sizes = {str(entry["name"]).rpartition("/")[2]: entry["size"] for entry in listed}
        for file in (file for shard in manifest.shards for file in shard.files):
            if file.name not in sizes:
                raise TruncatedShardError(f"{self.name}/{file.name} is missing; copy the corpus again")
            if sizes[file.name] is not None and sizes[file.name] != file.num_bytes:
                raise TruncatedShardError(
                    f"{self.name}/{file.name} has {sizes[file.name]:,} bytes, expected {file.num_bytes:,}; "
                    "copy the corpus again"
                )

    def verify(self, file: FileRecord) -> None:
        digest = hashlib.sha256()
        for block in self._blocks(file):
            digest.update(block)
        if digest.hexdigest() != file.sha256:
            self._raise_damaged(file)

    def array(self, file: FileRecord, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
        for _ in range(FETCH_ATTEMPTS):
            path = self._cache.path(file)
            if path is None:
                path = self._fetch(file)
            try:
                return map_array(path, dtype)
            except TruncatedShardError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        raise CacheSizeError(
            f"{self.name}/{file.name} is removed from the cache before it is read; raise OPENAFM_CACHE_GB, "
            "which the processes of this machine share"
        )

    def _fetch(self, file: FileRecord) -> Path:
        """Copy a file into the cache; it appears there once it equals its digest."""
        with self._cache.place_for(file) as path, atomic_file(path) as target:
            digest = hashlib.sha256()
            for block in self._blocks(file):
                digest.update(block)
                target.write(block)
            if digest.hexdigest() != file.sha256:
                self._raise_damaged(file)
        return path

    def _blocks(self, file: FileRecord) -> Iterator[bytes]:
        try:
            with self._system.open(f"{self._root}/{file.name}", "rb") as source:
                while block := source.read(BLOCK_BYTES):
                    yield block
        except FileNotFoundError as error:
            raise TruncatedShardError(f"{self.name}/{file.name} is missing; copy the corpus again") from error
        except Exception as error:
            raise ObjectStorageError(f"{self.name}/{file.name} cannot be read: {error}") from error

    def _raise_damaged(self, file: FileRecord) -> NoReturn:
        raise ShardDigestError(
            f"{self.name}/{file.name} was changed after it was written: its SHA-256 is not {file.sha256[:12]}; "
            "copy the corpus again"
        )


class FileCache:
    """Files by digest in a folder of at most `max_bytes`. Processes share it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes

    def path(self, file: FileRecord) -> Path | None:
        """Return where the file is, and mark it as just read; None if it is not in the cache."""
        path = self._path(file)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    @contextmanager
    def place_for(self, file: FileRecord) -> Iterator[Path]:
        """Remove files until this one fits, and yield where to write it.

        Raises:
            CacheSizeError: it is larger than the whole cache.
        """
        if file.num_bytes > self._max_bytes:
            raise CacheSizeError(
                f"{file.name} has {file.num_bytes:,} bytes, and the cache of data holds {self._max_bytes:,}; "
                "raise OPENAFM_CACHE_GB"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make_room(file.num_bytes)
        yield self._path(file)
        self._make_room(0, keep=self._path(file))  # other processes may have added files meanwhile

    def _path(self, file: FileRecord) -> Path:
        return self._folder / f"{file.sha256}.npy"

    def _make_room(self, num_bytes: int, keep: Path | None = None) -> None:
        found = []
        for path in self._folder.glob("*.npy"):
            try:
                found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
            except FileNotFoundError:
                continue  # another process has removed it
        used = num_bytes + sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if used <= self._max_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                used -= size


def cache_bytes() -> int:
    """Return the size of the cache of data: `$OPENAFM_CACHE_GB`, 100 by default.

    Raises:
        CacheSizeError: it is not a number above 0.
    """
    text = os.environ.get("OPENAFM_CACHE_GB", str(DEFAULT_CACHE_GB))
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < float("inf"):
        raise CacheSizeError(f"OPENAFM_CACHE_GB is {text!r}; set a number of gigabytes above 0, such as 100")
    return int(gigabytes * 1e9)
