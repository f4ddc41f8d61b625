"""Writing token shards: documents in, one atomic folder out. Memory is bounded by the size of a shard."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from openafm.core.config import to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder, check_written, room_for, write_json
from openafm.core.folder_lock import folder_lock
from openafm.data.shards.manifest import (
    IMAGE_SLOTS,
    MANIFEST,
    EmptyCorpusError,
    FileRecord,
    ImagesConfig,
    Manifest,
    ManifestError,
    ShardRecord,
)
from openafm.data.shards.token_shards import read_manifest

TOKENS_PER_SHARD = 1 << 24
_ARRAYS = ("tokens", "offsets", "tags", "loss_mask", "images")
_IMAGE_FILES = ("manifest.json", "[0-9]*.tar", "[0-9]*.npy", "[0-9]*.parquet", "[0-9]*.json")
FILE_PATTERNS = tuple(
    f"{folder}{name}"
    for folder in ("", "held_out/")
    for name in (MANIFEST, ".lock", *(f"[0-9]*.{it}.npy" for it in _ARRAYS))
) + tuple(f"images/{name}" for name in _IMAGE_FILES)
"""Patterns of all files that a corpus may have; one with others is not replaced."""


class DocumentError(OpenAFMError):
    """A document cannot be stored: no tokens, a token outside the vocabulary, or a loss mask of another length."""


class OutputFolderError(OpenAFMError):
    """The output folder has other files than a corpus, or a corpus of another tokenizer."""


@contextlib.contextmanager
def write_shards(
    path: Path, *, tokenizer_digest: str, vocab_size: int, tokens_per_shard: int = TOKENS_PER_SHARD
) -> Iterator[ShardWriter]:
    """Yield a writer. If the block succeeds, the corpus replaces what `path` has; otherwise `path` is unchanged.

    Raises:
        OutputFolderError: `path` has files that are not a corpus.
        EmptyCorpusError: no document was added.
        OutOfSpaceError: the disk is full.
    """
    check_output(path)
    with atomic_folder(path) as folder:
        writer = ShardWriter(
            folder, tokenizer_digest=tokenizer_digest, vocab_size=vocab_size, tokens_per_shard=tokens_per_shard
        )
        yield writer
        writer.finish()


@contextlib.contextmanager
def append_shards(
    path: Path, *, tokenizer_digest: str, vocab_size: int, tokens_per_shard: int = TOKENS_PER_SHARD
) -> Iterator[ShardWriter]:
    """Yield a writer that adds shards to the corpus at `path`. The manifest is replaced when the block succeeds.

    Existing files are not rewritten. After a failure the corpus is unchanged; the next call overwrites leftover files.

    Raises:
        ManifestError: `path` has no corpus.
        OutputFolderError: the corpus has another tokenizer.
        OutOfSpaceError: the disk is full.
    """
    manifest = read_manifest(path)
    if (manifest.tokenizer_digest, manifest.vocab_size) != (tokenizer_digest, vocab_size):
        raise OutputFolderError(f"{path} was packed with another tokenizer; pack the new documents into another folder")
    with folder_lock(path), room_for(path):
        writer = ShardWriter(
            path,
            tokenizer_digest=tokenizer_digest,
            vocab_size=vocab_size,
            tokens_per_shard=tokens_per_shard,
            existing=manifest,
        )
        yield writer
        writer.finish()


def check_output(path: Path) -> None:
    """Check that `path` is absent, an empty folder or an older corpus.

    Raises:
        OutputFolderError: `path` is not a corpus.
        ForeignFilesError: the corpus has files that openafm did not write.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        read_manifest(path)
    except ManifestError as error:
        raise OutputFolderError(f"{path} exists and is not a corpus; choose another output folder") from error
    check_written(path, FILE_PATTERNS)


class ShardWriter:
    """Writes shards of up to `tokens_per_shard` tokens into `folder`; a longer document gets a shard of its own.

    With `existing`, the shards come after those of that manifest. With `is_resumable`, the manifest is written after each
    shard, so that a later writer can continue.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tokenizer_digest: str,
        vocab_size: int,
        tokens_per_shard: int,
        existing: Manifest | None = None,
        is_resumable: bool = False,
        images: ImagesConfig | None = None,
    ) -> None:
        self.num_documents, self.num_tokens, self._is_resumable = 0, 0, is_resumable
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._tokenizer_digest, self._vocab_size = folder, tokenizer_digest, vocab_size
        self._tokens_per_shard, self._images = tokens_per_shard, existing.images if existing else images
        self._token_type = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self._languages = _indices(existing.languages if existing else ())  # tag -> its index in the manifest
        self._sources = _indices(existing.sources if existing else ())
        self._metadata = {key: _indices(values) for key, values in (existing.metadata if existing else {}).items()}
        self._shards: list[ShardRecord] = list(existing.shards if existing else ())
        self._clear()

    def add(
        self,
        tokens: Sequence[int] | npt.NDArray[np.int64],
        *,
        language: str = "",
        source: str = "",
        loss_mask: Sequence[bool] | npt.NDArray[np.bool_] | None = None,
        metadata: Mapping[str, str] | None = None,
        image_slots: npt.NDArray[Any] | None = None,
    ) -> None:
        """Append one document. `loss_mask` selects the tokens that carry loss; None selects all.

        `metadata` has further tags, such as `license`; each key has at most 65,536 different values. `image_slots` [I]
        (IMAGE_SLOTS) are the images of the document; their starts count from its first token.

        Raises:
            DocumentError: no tokens, a token outside the vocabulary, a mask of another length, or too many values of a tag.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        if not len(ids):
            raise DocumentError("a document needs at least one token")
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            raise DocumentError(f"token {ids.min()} or {ids.max()} lies outside the vocabulary of {self._vocab_size:,}")
        if loss_mask is not None and len(loss_mask) != len(ids):
            raise DocumentError(f"the loss mask has {len(loss_mask):,} entries for {len(ids):,} tokens")
        if self._offsets[-1] and self._offsets[-1] + len(ids) > self._tokens_per_shard:
            self._write_shard()
            if self._is_resumable:
                self._write_manifest()
        self._tokens += ids.astype(self._token_type).tobytes()
        self._loss_mask += b"\1" * len(ids) if loss_mask is None else np.asarray(loss_mask, dtype=np.bool_).tobytes()
        if image_slots is not None and len(image_slots):
            _check_slots(image_slots, len(ids))
            placed = image_slots.copy()
            placed["start"] += self._offsets[-1]
            self._image_slots.append(placed)
        self._offsets.append(self._offsets[-1] + len(ids))
        for key in metadata or ():
            self._metadata.setdefault(key, {"": 0})
        further = (_index_of((metadata or {}).get(key, ""), indices) for key, indices in self._metadata.items())
        self._tags.append((_index_of(language, self._languages), _index_of(source, self._sources), *further))
        self.num_documents += 1
        self.num_tokens += len(ids)

    def finish(self) -> Manifest:
        """Write the last shard and the manifest, and return it. Idempotent.

        Raises:
            EmptyCorpusError: no document was added.
        """
        if not self.num_documents and not self._shards:
            raise EmptyCorpusError("no document to write: the input has no text, and a corpus needs at least one document")
        if self._tags:
            self._write_shard()
        return self._write_manifest()

    def _write_manifest(self) -> Manifest:
        manifest = Manifest(
            tokenizer_digest=self._tokenizer_digest,
            vocab_size=self._vocab_size,
            languages=tuple(self._languages),
            sources=tuple(self._sources),
            shards=tuple(self._shards),
            metadata={key: tuple(values) for key, values in self._metadata.items()},
            images=self._images,
        )
        write_json(self._folder / MANIFEST, to_dict(manifest))
        return manifest

    def _clear(self) -> None:
        self._tokens, self._loss_mask = bytearray(), bytearray()
        self._offsets: list[int] = [0]
        self._tags: list[tuple[int, ...]] = []
        self._image_slots: list[npt.NDArray[Any]] = []

    def _write_shard(self) -> None:
        number = f"{len(self._shards):05}"
        languages, sources = tuple(self._languages), tuple(self._sources)
        learn_N = np.frombuffer(self._loss_mask, dtype=np.bool_)
        tags = np.zeros((len(self._tags), 2 + len(self._metadata)), dtype="<u2")
        for row, found in zip(tags, self._tags, strict=True):
            row[: len(found)] = found
        self._shards.append(
            ShardRecord(
                num_tokens=self._offsets[-1],
                num_documents=len(self._tags),
                num_images=sum(map(len, self._image_slots)),
                languages=_counts(languages, tags[:, 0]),
                sources=_counts(sources, tags[:, 1]),
                tokens=self._save(f"{number}.tokens.npy", np.frombuffer(self._tokens, dtype=self._token_type)),
                offsets=self._save(f"{number}.offsets.npy", np.array(self._offsets, dtype="<i8")),
                tags=self._save(f"{number}.tags.npy", tags),
                loss_mask=None
                if learn_N.all()
                else self._save(f"{number}.loss_mask.npy", np.packbits(learn_N, bitorder="little")),
                images=self._save(f"{number}.images.npy", np.concatenate(self._image_slots).astype(IMAGE_SLOTS))
                if self._image_slots
                else None,
            )
        )
        self._clear()

    def _save(self, name: str, array: npt.NDArray[Any]) -> FileRecord:
        with (self._folder / name).open("wb", buffering=0) as raw:
            stream = _HashingStream(raw)
            np.lib.format.write_array(stream, array, allow_pickle=False)
        return FileRecord(name=name, num_bytes=stream.num_bytes, sha256=stream.sha256.hexdigest())


class _HashingStream:
    """A stream that computes the digest of its data. numpy's `tofile` hides the errno of a full disk."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.sha256, self.num_bytes = stream, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            written = self._stream.write(view)
            view = view[written:]
        self.sha256.update(data)
        self.num_bytes += len(data)
        return len(data)


def _check_slots(slots_I: npt.NDArray[Any], num_tokens: int) -> None:
    starts, stops = slots_I["start"], slots_I["start"] + slots_I["num_tokens"]
    if starts[0] < 0 or stops[-1] > num_tokens or (slots_I["num_tokens"] < 1).any() or (starts[1:] < stops[:-1]).any():
        raise DocumentError(f"image slots must be disjoint, in order and within the {num_tokens:,} tokens of the document")


def _indices(values: Sequence[str]) -> dict[str, int]:
    return {value: index for index, value in enumerate(values)}


def _index_of(tag: str, indices: dict[str, int]) -> int:
    if len(indices) == 1 << 16 and tag not in indices:
        raise DocumentError(f"tag {tag!r} would be the 65,537th; languages and sources are a few categories")
    return indices.setdefault(tag, len(indices))


def _counts(names: tuple[str, ...], indices: npt.NDArray[np.generic]) -> dict[str, int]:
    return {names[index]: count for index, count in sorted(Counter(indices.tolist()).items())}
