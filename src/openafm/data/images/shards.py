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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from openafm.core.arrays import map_array_file
from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import OversizeFilesError, atomic_file, file_digest, read_document, write_json
from openafm.core.libraries import needed
from openafm.data.images.documents import ImageDocument, StoredImage
from openafm.data.images.records import (
    DroppedImage,
    document_row,
    document_schema,
    drop_row,
    drop_schema,
    read_dropped,
    read_image_documents,
)
from openafm.data.images.tar_files import INDEX, write_tar
from openafm.data.pipeline.parquet import RowWriter
from openafm.data.shards.manifest import FileRecord
from openafm.data.web.documents import Dropped

MANIFEST = "manifest.json"
FORMAT = "openafm.image_corpus"
VERSION = 1
PATTERNS = (
    MANIFEST,
    "report.html",
    ".lock",
    *(f"[0-9]*.{it}" for it in ("tar", "index.npy", "documents.parquet", "dropped.parquet", "json")),
)
"""Patterns of all files that an image corpus may have."""
HELD_OUT = "held_out"
MAX_OPEN_FILES = 128

ShardItem = tuple[ImageDocument, Sequence[StoredImage]] | Dropped


class ImageCorpusError(OpenAFMError):
    """A folder is not an image corpus, or a file of it is missing or was changed."""


class MissingImageError(ImageCorpusError):
    """A document names an image that the corpus does not have."""


@dataclass(frozen=True, kw_only=True)
class ShardSummary(Config):
    """One shard: its counts and its files. `key` identifies what it was computed from; `dropped` counts by reason.

    `num_held_out` documents have the split `held_out`.
    """

    index: int
    key: str = ""
    num_documents: int
    num_held_out: int = 0
    num_images: int
    image_bytes: int
    dropped: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    languages: dict[str, int] = field(default_factory=dict)
    files: tuple[FileRecord, ...] = ()

    @property
    def num_items(self) -> int:
        """Documents and drops."""
        return self.num_documents + sum(self.dropped.values())


@dataclass(frozen=True, kw_only=True)
class Manifest(Config):
    """The content of `manifest.json`. `config` is the JSON form of what the corpus was made with."""

    format: str = FORMAT
    version: int = VERSION
    config: dict[str, Any]
    shards: tuple[ShardSummary, ...]

    def __post_init__(self) -> None:
        self.require(self.format == FORMAT, f"the format is {self.format!r}, expected {FORMAT!r}")
        self.require(self.version == VERSION, f"version {self.version} needs another release, this one reads {VERSION}")

    @property
    def num_documents(self) -> int:
        return sum(shard.num_documents for shard in self.shards)

    @property
    def num_held_out(self) -> int:
        return sum(shard.num_held_out for shard in self.shards)

    @property
    def num_images(self) -> int:
        """Images of all shards; one that occurs in several shards counts for each."""
        return sum(shard.num_images for shard in self.shards)

    @property
    def dropped(self) -> dict[str, int]:
        """The drops of all shards by reason."""
        return _added(shard.dropped for shard in self.shards)

    @property
    def kinds(self) -> dict[str, int]:
        """The documents of all shards by kind."""
        return _added(shard.kinds for shard in self.shards)

    @property
    def languages(self) -> dict[str, int]:
        """The documents of all shards by language."""
        return _added(shard.languages for shard in self.shards)

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the manifest, hence of every file."""
        return hashlib.sha256(json.dumps(to_dict(self), sort_keys=True).encode()).hexdigest()


def write_image_shard(folder: Path, index: int, items: Iterable[ShardItem], *, key: str = "") -> ShardSummary:
    """Write a shard of an image corpus: documents with their images, and drops. Equal items give equal bytes.

    The record of the shard is written last. `key` identifies the input, for `finished_shard`.

    Raises:
        MissingImageError: a document names an image that is not among its images.
        OutOfSpaceError: the disk is full.
    """
    number = f"{index:05}"
    paths = {it: folder / f"{number}.{it}" for it in ("tar", "index.npy", "documents.parquet", "dropped.parquet")}
    images: dict[str, tuple[StoredImage, Mapping[str, str]]] = {}
    kinds, languages, splits, dropped = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    with (
        atomic_file(paths["documents.parquet"]) as documents_file,
        atomic_file(paths["dropped.parquet"]) as dropped_file,
        RowWriter(documents_file, document_schema()) as documents,
        RowWriter(dropped_file, drop_schema()) as drops,
    ):
        for item in items:
            if isinstance(item, Dropped):
                dropped[item.reason] += 1
                drops.write(drop_row(item))
                continue
            document, found = item
            _check_images(document, found)
            documents.write(document_row(document))
            kinds[document.kind] += 1
            languages[document.language] += 1
            splits[document.split] += 1
            captions = document.captions if len(found) == 1 else {}
            for image in found:
                images.setdefault(image.digest, (image, captions))
    with atomic_file(paths["tar"]) as tar:
        index_I = write_tar(tar, images)
    with atomic_file(paths["index.npy"]) as file:
        np.lib.format.write_array(file, index_I, allow_pickle=False)
    summary = ShardSummary(
        index=index,
        key=key,
        num_documents=sum(kinds.values()),
        num_held_out=splits[HELD_OUT],
        num_images=len(images),
        image_bytes=int(index_I["num_bytes"].sum()),
        dropped=dict(sorted(dropped.items())),
        kinds=dict(sorted(kinds.items())),
        languages=dict(sorted(languages.items())),
        files=tuple(
            FileRecord(name=path.name, num_bytes=path.stat().st_size, sha256=file_digest(path)) for path in paths.values()
        ),
    )
    write_json(folder / f"{number}.json", to_dict(summary))
    return summary


def finished_shard(folder: Path, index: int, key: str) -> ShardSummary | None:
    """Return the record of a shard that an interrupted run completed with the same `key`; None if there is none."""
    try:
        summary = from_dict(ShardSummary, json.loads(read_document(folder / f"{index:05}.json")))
    except (OSError, ValueError, RecursionError, ConfigError):
        return None
    whole = all(_size(folder / file.name) == file.num_bytes for file in summary.files)
    return summary if whole and (summary.index, summary.key) == (index, key) else None


def finish_corpus(folder: Path, config: Mapping[str, Any], summaries: Iterable[ShardSummary]) -> Manifest:
    """Write the manifest of a corpus, which makes it complete. Files of shards that are not in it are removed.

    Raises:
        ImageCorpusError: there is no shard, or the shards are not numbered 0, 1, ...
    """
    shards = tuple(sorted(summaries, key=lambda summary: summary.index))
    if [shard.index for shard in shards] != list(range(len(shards))) or not shards:
        raise ImageCorpusError(f"{folder}: shards must be numbered from 0, got {[shard.index for shard in shards]}")
    manifest = Manifest(config=dict(config), shards=shards)
    for file in folder.glob("[0-9]*.*"):
        if int(file.name.partition(".")[0]) >= len(shards):
            file.unlink()  # of an earlier corpus with more shards
    write_json(folder / MANIFEST, to_dict(manifest))
    return manifest


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
        if _size(path / record.name) != record.num_bytes:
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


def _check_images(document: ImageDocument, images: Sequence[StoredImage]) -> None:
    missing = set(document.digests) - {image.digest for image in images}
    if missing:
        raise MissingImageError(f"document {document.id} has the image {min(missing)[:12]} without its bytes; pass them too")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
