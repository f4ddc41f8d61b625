"""Token shards: a folder of memory-mapped arrays that any program can read. The manifest has the digest of every file.

    corpus/
      manifest.json           tokenizer digest, vocabulary size, tags, and each shard's counts, files and SHA-256 digests
      00000.tokens.npy        [N] uint16 up to a vocabulary of 65,536, else uint32; documents one after another
      00000.offsets.npy       [D + 1] int64; document d is tokens[offsets[d] : offsets[d + 1]]
      00000.tags.npy          [D, 2 + K] uint16; indices into the manifest's `languages`, `sources` and K lists of `metadata`
      00000.loss_mask.npy     [ceil(N / 8)] uint8, little-endian bits: learn to predict this token. No file: learn all
      00000.images.npy        [I] IMAGE_SLOTS: where images replace token embeddings. No file: no images
      images/                 the image corpus that the slots refer to (images/shards.py), linked or copied

`write_shards` makes one, `open_shards` reads it.
Shape suffixes: N tokens, D documents, I images.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.core.config import ConfigError, from_dict
from openafm.data.shards.files import ShardFiles, Verification, shard_files
from openafm.data.shards.manifest import (
    IMAGE_SLOTS,
    MANIFEST,
    EmptyCorpusError,
    ForeignTokenizerError,
    Manifest,
    ManifestError,
    ShardDigestError,
)

MAX_OPEN_SHARDS = 128  # each holds up to two file descriptors

Int64Array = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.unsignedinteger]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document as stored: tokens [n] int64, which of them to learn [n], its tags and other metadata."""

    tokens: Int64Array
    loss_mask: BoolArray
    language: str
    source: str
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Shards:
    """An open corpus. Arrays are memory-mapped on first use, those of up to `MAX_OPEN_SHARDS` shards at a time."""

    def __init__(self, files: ShardFiles, manifest: Manifest) -> None:
        self.files, self.manifest = files, manifest
        self.offsets = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._map_offsets)
        self._arrays = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._map)
        self._image_slots = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._map_image_slots)

    @property
    def path(self) -> Path:
        """Return the folder of the corpus.

        Raises:
            ShardError: the corpus is in object storage.
        """
        return self.files.folder

    @property
    def num_shards(self) -> int:
        return len(self.manifest.shards)

    def tokens(self, shard: int, start: int, stop: int) -> TokenArray:
        """Return the tokens at positions start..stop-1 of a shard: a view of the file."""
        return self._arrays(shard)[0][start:stop]

    def loss_mask(self, shard: int, start: int, stop: int) -> BoolArray:
        """Return whether the tokens at positions start..stop-1 carry loss."""
        bits = self._arrays(shard)[1]
        if bits is None:
            return np.ones(stop - start, dtype=np.bool_)
        first_byte = start // 8
        covering = np.unpackbits(bits[first_byte : (stop + 7) // 8], bitorder="little")
        return covering[start - 8 * first_byte : stop - 8 * first_byte].view(np.bool_)

    def image_slots(self, shard: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the images that begin at positions start..stop-1 of a shard [I] (IMAGE_SLOTS), in order."""
        slots_I = self._image_slots(shard)
        first, last = np.searchsorted(slots_I["start"], (start, stop))
        return slots_I[first:last]

    @property
    def num_without_loss(self) -> int:
        """Return the number of documents without a token that carries loss."""
        masked = [shard for shard, record in enumerate(self.manifest.shards) if record.loss_mask is not None]
        learnt = (self.loss_mask(shard, 0, int(self.offsets(shard)[-1])) for shard in masked)
        firsts = (self.offsets(shard)[:-1] for shard in masked)
        return sum(
            int((~np.logical_or.reduceat(mask_N, first_D)).sum()) for mask_N, first_D in zip(learnt, firsts, strict=True)
        )

    def languages(self, shard: int) -> npt.NDArray[np.uint16]:
        """Return the language of each document of a shard [D], as an index into the manifest's `languages`."""
        languages_D: npt.NDArray[np.uint16] = self.files.array(self.manifest.shards[shard].tags)[:, 0]
        return languages_D

    def document(self, shard: int, index: int) -> Document:
        """Return document `index` of a shard, with its tags.

        Raises:
            ShardDigestError: a tag is not in the manifest.
        """
        start, stop = (int(offset) for offset in self.offsets(shard)[index : index + 2])
        file = self.manifest.shards[shard].tags
        try:
            language, source, *others = self.files.array(file)[index]
            lists = zip(self.manifest.metadata.items(), others, strict=False)  # later shards may have further keys
            tags = {
                "language": self.manifest.languages[language],
                "source": self.manifest.sources[source],
            }
            metadata = {key: values[tag] for (key, values), tag in lists if tag}
        except (IndexError, TypeError, ValueError) as error:
            raise ShardDigestError(f"{self.files.name}/{file.name} does not fit the manifest: {error}") from error
        return Document(
            tokens=self.tokens(shard, start, stop).astype(np.int64),
            loss_mask=self.loss_mask(shard, start, stop),
            metadata=metadata,
            **tags,
        )

    def _map(self, shard: int) -> tuple[TokenArray, npt.NDArray[np.uint8] | None]:
        record = self.manifest.shards[shard]
        bits = None if record.loss_mask is None else self.files.array(record.loss_mask)
        return self.files.array(record.tokens), bits

    def _map_image_slots(self, shard: int) -> npt.NDArray[Any]:
        record = self.manifest.shards[shard]
        slots_I = np.zeros(0, IMAGE_SLOTS) if record.images is None else self.files.array(record.images, IMAGE_SLOTS)
        if record.images is not None and (np.diff(slots_I["start"]) <= 0).any():
            raise ShardDigestError(f"{self.files.name}/{record.images.name}: slots are not in order; pack the corpus again")
        return slots_I

    def _map_offsets(self, shard: int) -> Int64Array:
        record = self.manifest.shards[shard]
        offsets = self.files.array(record.offsets)
        if (
            offsets.dtype != np.int64
            or offsets.shape != (record.num_documents + 1,)
            or offsets[0] != 0
            or offsets[-1] != record.num_tokens
            or np.any(np.diff(offsets) < 0)
        ):
            raise ShardDigestError(f"{self.files.name}/{record.offsets.name} does not fit the counts in the manifest")
        return offsets


def open_shards(location: Path | str, *, tokenizer_digest: str | None = None, verification: Verification = "all") -> Shards:
    """Open token shards in a folder, or at an address such as `s3://bucket/corpus`.

    Sizes are always checked. Digests are by `verification`: all now, each before its file is first read, or never.

    Raises:
        ManifestError: `location` has no readable manifest.
        ForeignTokenizerError: the corpus has another tokenizer than `tokenizer_digest`.
        EmptyCorpusError: the corpus has no document.
        TruncatedShardError, ShardDigestError: a file was changed after it was written.
        ObjectStorageError: the address cannot be read.
    """
    files = shard_files(location, verification)
    manifest = read_manifest(location)
    if tokenizer_digest not in (None, manifest.tokenizer_digest):
        raise ForeignTokenizerError(
            f"{files.name}: made with tokenizer {manifest.tokenizer_digest[:12]}, in use is {tokenizer_digest[:12]}; "
            "pack the corpus again with the tokenizer in use"
        )
    if manifest.num_documents == 0:
        raise EmptyCorpusError(f"{files.name}: the corpus has no document; pack it again")
    files.check_sizes(manifest)
    if verification == "all":
        verify_shards(location, manifest)
    return Shards(files, manifest)


def read_manifest(location: Path | str) -> Manifest:
    """Return the manifest of token shards in a folder or at an address.

    Raises:
        ManifestError: the manifest is missing or malformed.
    """
    files = shard_files(location)
    content = files.read_manifest()
    try:
        return from_dict(Manifest, json.loads(content))
    except (ValueError, RecursionError, ConfigError) as error:
        raise ManifestError(f"{files.name}/{MANIFEST} is not the manifest of token shards: {error}") from error


def verify_shards(location: Path | str, manifest: Manifest | None = None, share: int = 0, num_shares: int = 1) -> None:
    """Read every file, or one of `num_shares` equal shares of the files, and compare it with its digest.

    Raises:
        TruncatedShardError, ShardDigestError: a file was changed after it was written.
    """
    files = shard_files(location)
    every = [file for shard in (manifest or read_manifest(location)).shards for file in shard.files]
    for file in every[share::num_shares]:
        files.verify(file)
