"""Image corpora: documents, their images as encoded bytes, and what was dropped; a folder that any program can read.

    corpus/
      manifest.json             config, counts, drops by reason, size and SHA-256 of every file
      00000.tar                 webdataset: <digest>.json and <digest>.png, .jpg or .webp for each image, sorted by digest
      00000.index.npy           [I] (INDEX): where each image is stored in the tar file; sorted by digest
      00000.documents.parquet   the documents (records.py)
      00000.dropped.parquet     what was dropped, with reasons
      00000.json                the record of the shard; it is written last, so a shard with a record is complete

A shard is a pure function of its items, so any number of workers gives equal bytes, and a run that was killed continues
after the shards that exist. `building.py` computes shards in worker processes.

Shape suffix: I images of a shard.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from openafm.core.arrays import map_array_file
from openafm.core.config import ConfigError, from_dict
from openafm.core.files import file_digest
from openafm.core.libraries import needed
from openafm.core.regular_files import OversizeFilesError, read_document
from openafm.data.images.documents import ImageDocument, StoredImage
from openafm.data.images.manifest import FORMAT, MANIFEST, ImageCorpusError, Manifest, MissingImageError, stored_size
from openafm.data.images.records import (
    DroppedImage,
    read_dropped,
    read_image_documents,
)
from openafm.data.images.tar_files import INDEX

MAX_OPEN_FILES = 128


def is_image_corpus(path: Path) -> bool:
    """Return whether a folder has the manifest of an image corpus."""
    try:
        values = json.loads(read_document(path / MANIFEST))
    except (OSError, ValueError, RecursionError, OversizeFilesError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def check_libraries() -> None:
    """Check that the libraries of image corpora are installed, before any work.

    Raises:
        MissingLibraryError: one is not; the message names the extra.
    """
    with needed("an image corpus", "Pillow and pyarrow", "images"):
        importlib.import_module("PIL")
        importlib.import_module("pyarrow")


def open_image_corpus(path: Path, *, verify: bool = False) -> ImageCorpus:
    """Open an image corpus. Sizes of files are checked, and with `verify` their digests.

    Raises:
        ImageCorpusError: `path` is not a complete image corpus, or a file was changed after it was written.
        MissingLibraryError: a library of the extra `images` is not installed.
    """
    check_libraries()
    file = path / MANIFEST
    try:
        manifest = from_dict(Manifest, json.loads(read_document(file)))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ImageCorpusError(f"{file} does not exist: {path} is not a complete image corpus") from error
    except (OSError, OversizeFilesError, ValueError, RecursionError, ConfigError) as error:
        raise ImageCorpusError(f"{file} is not the manifest of an image corpus: {error}") from error
    for record in (record for shard in manifest.shards for record in shard.files):
        if stored_size(path / record.name) != record.num_bytes:
            raise ImageCorpusError(f"{path / record.name} is missing or cut; copy the corpus again or make it again")
        if verify and file_digest(path / record.name) != record.sha256:
            raise ImageCorpusError(f"{path / record.name} was changed after it was written; copy it again or make it again")
    return ImageCorpus(path, manifest)


class ImageCorpus:
    """An open image corpus. Threads may share it. Indices are memory-mapped on first use."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest, self._recent = path, manifest, 0
        self._index = lru_cache(maxsize=None)(self._map_index)
        self._tar = lru_cache(maxsize=MAX_OPEN_FILES)(self._open_tar)

    def documents(self, split: str | None = None) -> Iterator[ImageDocument]:
        """Yield the documents in the order of the shards, or those of one split."""
        for shard in range(len(self.manifest.shards)):
            yield from (each for each in self.shard_documents(shard) if split in (None, each.split))

    def shard_documents(self, shard: int) -> Iterator[ImageDocument]:
        """Yield the documents of one shard."""
        return read_image_documents(self.path / f"{shard:05}.documents.parquet")

    def dropped(self, shard: int) -> Iterator[DroppedImage]:
        """Yield what was dropped in one shard."""
        return read_dropped(self.path / f"{shard:05}.dropped.parquet")

    def __contains__(self, digest: str) -> bool:
        return self._find(digest) is not None

    def place(self, digest: str) -> tuple[int, int]:
        """Return the shard of an image and its row in the index of the shard.

        Raises:
            MissingImageError: the corpus does not have the image.
        """
        found = self._find(digest)
        if found is None:
            raise MissingImageError(f"{self.path} has no image {digest[:12]}; make the corpus again")
        return found

    def size(self, digest: str) -> tuple[int, int]:
        """Return the width and height of an image.

        Raises:
            MissingImageError: the corpus does not have the image.
        """
        shard, row = self.place(digest)
        entry = self._index(shard)[row]
        return int(entry["width"]), int(entry["height"])

    def opt_out(self, digest: str) -> str:
        """Return the reason why an image must not be used for training; empty if it may be.

        Raises:
            MissingImageError: the corpus does not have the image.
        """
        return str(self._record(*self.place(digest))["opt_out"])

    def image(self, digest: str) -> StoredImage:
        """Return an image by its digest.

        Raises:
            MissingImageError: the corpus does not have the image.
            ImageCorpusError: its bytes were changed after they were written.
        """
        return self.image_at(*self.place(digest))

    def image_at(self, shard: int, row: int) -> StoredImage:
        """Return the image at a row of the index of a shard.

        Raises:
            ImageCorpusError: its bytes were changed after they were written.
        """
        entry = self._index(shard)[row]
        data = self._read(shard, int(entry["offset"]), int(entry["num_bytes"]))
        digest = hashlib.sha256(data)
        if digest.digest() != bytes(entry["digest"]).ljust(32, b"\0"):
            raise ImageCorpusError(f"{self.path}/{shard:05}.tar was changed after it was written; copy it again")
        record = self._record(shard, row)
        return StoredImage(
            digest=digest.hexdigest(),
            data=data,
            **{name: record[name] for name in ("format", "width", "height", "source", "license", "opt_out", "metadata")},
        )

    def index(self, shard: int) -> npt.NDArray[Any]:
        """Return the index of a shard [I] (INDEX), memory-mapped."""
        return self._index(shard)

    def _record(self, shard: int, row: int) -> dict[str, Any]:
        entry = self._index(shard)[row]
        text = self._read(shard, int(entry["record_offset"]), int(entry["record_bytes"]))
        try:
            record: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ImageCorpusError(f"{self.path}/{shard:05}.tar was changed after it was written; copy it again") from error
        return record

    def _read(self, shard: int, offset: int, num_bytes: int) -> bytes:
        tar = self._tar(shard)  # this reference keeps the file open if another thread replaces it in the cache
        return os.pread(tar.fileno(), num_bytes, offset)

    def _find(self, digest: str) -> tuple[int, int] | None:
        try:
            wanted = bytes.fromhex(digest)
        except ValueError:
            return None
        recent = self._recent  # the images of a document are in its shard, so the next one is mostly here too
        for shard in (recent, *(each for each in range(len(self.manifest.shards)) if each != recent)):
            digests_I = self._index(shard)["digest"]
            row = int(np.searchsorted(digests_I, np.bytes_(wanted)))
            if row < len(digests_I) and bytes(digests_I[row]).ljust(32, b"\0") == wanted:  # NumPy cuts zeros at the end
                self._recent = shard
                return shard, row
        return None

    def _map_index(self, shard: int) -> npt.NDArray[Any]:
        path = self.path / f"{shard:05}.index.npy"
        try:
            index_I = map_array_file(path)
        except Exception as error:  # errors of many types
            raise ImageCorpusError(f"{path} is not a whole array file: {error}") from error
        if index_I.dtype != INDEX:
            raise ImageCorpusError(f"{path} is not the index of image shards; make the corpus again")
        return np.asarray(index_I)

    def _open_tar(self, shard: int) -> IO[bytes]:
        return (self.path / f"{shard:05}.tar").open("rb", buffering=0)
