"""Writing token shards: documents in, one atomic folder out. Memory is bounded by the size of a shard."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from openafm.core.config import to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import atomic_folder, write_json
from openafm.data.shards import MANIFEST, EmptyCorpusError, FileRecord, Manifest, ManifestError, ShardRecord, read_manifest

TOKENS_PER_SHARD = 1 << 24


class DocumentError(OpenAFMError):
    """Tokens that cannot be stored: none at all, outside the vocabulary, or with a loss mask of another length."""


class OutputFolderError(OpenAFMError):
    """The output folder holds something else; it is left alone."""


@contextlib.contextmanager
def write_shards(
    path: Path, *, tokenizer_digest: str, vocab_size: int, tokens_per_shard: int = TOKENS_PER_SHARD
) -> Iterator[ShardWriter]:
    """Yield a writer; when the block ends well the corpus stands at `path`, in place of an older one, else nothing changed.

    Raises:
        OutputFolderError: `path` holds something that is not a corpus.
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


def check_output(path: Path) -> None:
    """Refuse to write a corpus over anything but nothing, an empty folder or an older corpus.

    Raises:
        OutputFolderError: `path` holds something else.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        read_manifest(path)
    except ManifestError as error:
        raise OutputFolderError(f"{path} exists and is not a corpus; choose another output folder") from error


class ShardWriter:
    """Fills `folder` with shards of up to `tokens_per_shard` tokens (a longer document gets a shard of its own)."""

    def __init__(self, folder: Path, *, tokenizer_digest: str, vocab_size: int, tokens_per_shard: int) -> None:
        self.num_documents, self.num_tokens = 0, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._tokenizer_digest, self._vocab_size = folder, tokenizer_digest, vocab_size
        self._tokens_per_shard = tokens_per_shard
        self._token_type = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
        self._languages: dict[str, int] = {}  # tag -> its index in the manifest
        self._sources: dict[str, int] = {}
        self._shards: list[ShardRecord] = []
        self._clear()

    def add(
        self,
        tokens: Sequence[int] | npt.NDArray[np.int64],
        *,
        language: str = "",
        source: str = "",
        loss_mask: Sequence[bool] | None = None,
    ) -> None:
        """Append one document. `loss_mask` says which of its tokens to learn to predict; None means all.

        Raises:
            DocumentError: no tokens, a token outside the vocabulary, a mask of another length, or a tag too many.
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
        self._tokens += ids.astype(self._token_type).tobytes()
        self._loss_mask += b"\1" * len(ids) if loss_mask is None else np.asarray(loss_mask, dtype=np.bool_).tobytes()
        self._offsets.append(self._offsets[-1] + len(ids))
        self._tags.append((_index_of(language, self._languages), _index_of(source, self._sources)))
        self.num_documents += 1
        self.num_tokens += len(ids)

    def finish(self) -> Manifest:
        """Write the last shard and the manifest.

        Raises:
            EmptyCorpusError: no document was added.
        """
        if not self.num_documents:
            raise EmptyCorpusError("no document to write: a corpus needs at least one")
        self._write_shard()
        manifest = Manifest(
            tokenizer_digest=self._tokenizer_digest,
            vocab_size=self._vocab_size,
            languages=tuple(self._languages),
            sources=tuple(self._sources),
            shards=tuple(self._shards),
        )
        write_json(self._folder / MANIFEST, to_dict(manifest))
        return manifest

    def _clear(self) -> None:
        self._tokens, self._loss_mask = bytearray(), bytearray()
        self._offsets: list[int] = [0]
        self._tags: list[tuple[int, int]] = []

    def _write_shard(self) -> None:
        number = f"{len(self._shards):05}"
        languages, sources = tuple(self._languages), tuple(self._sources)
        learn_N = np.frombuffer(self._loss_mask, dtype=np.bool_)
        tags = np.array(self._tags, dtype="<u2")
        self._shards.append(
            ShardRecord(
                num_tokens=self._offsets[-1],
                num_documents=len(self._tags),
                languages=_counts(languages, tags[:, 0]),
                sources=_counts(sources, tags[:, 1]),
                tokens=self._save(f"{number}.tokens.npy", np.frombuffer(self._tokens, dtype=self._token_type)),
                offsets=self._save(f"{number}.offsets.npy", np.array(self._offsets, dtype="<i8")),
                tags=self._save(f"{number}.tags.npy", tags),
                loss_mask=None
                if learn_N.all()
                else self._save(f"{number}.loss_mask.npy", np.packbits(learn_N, bitorder="little")),
            )
        )
        self._clear()

    def _save(self, name: str, array: npt.NDArray[np.generic]) -> FileRecord:
        with (self._folder / name).open("wb", buffering=0) as raw:
            stream = _HashingStream(raw)
            np.lib.format.write_array(stream, array, allow_pickle=False)
        return FileRecord(name=name, num_bytes=stream.num_bytes, sha256=stream.sha256.hexdigest())


class _HashingStream:
    """A stream that digests what it writes. numpy's own `tofile` is avoided: it hides the errno of a full disk."""

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


def _index_of(tag: str, indices: dict[str, int]) -> int:
    if len(indices) == 1 << 16 and tag not in indices:
        raise DocumentError(f"tag {tag!r} would be the 65,537th; languages and sources are a few categories")
    return indices.setdefault(tag, len(indices))


def _counts(names: tuple[str, ...], indices: npt.NDArray[np.generic]) -> dict[str, int]:
    return {names[index]: count for index, count in sorted(Counter(indices.tolist()).items())}
