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
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import OversizeFilesError, file_digest, read_document
from openafm.data.images.resolution import ResolutionConfig

MANIFEST = "manifest.json"
FORMAT = "openafm.token_shards"
VERSION = 1
MAX_OPEN_SHARDS = 128  # each holds up to two file descriptors

IMAGE_SLOTS = np.dtype(
    [("start", "<i8"), ("num_tokens", "<i4"), ("digest", "S32"), ("shard", "<u4"), ("row", "<u4"), ("mode", "u1")]
)
"""An image in a shard of tokens: its first position and number of tokens, the SHA-256 of its bytes, the shard of the image
corpus and the row of its index, and the index of its mode in `images.resolution.MODES`. Slots are sorted by `start`."""

Int64Array = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.unsignedinteger]
BoolArray = npt.NDArray[np.bool_]


class ShardError(OpenAFMError):
    """A folder of token shards cannot be used; the message has the file."""


class ManifestError(ShardError):
    """The manifest is missing or cannot be read."""


class TruncatedShardError(ShardError):
    """A file of a shard is missing or has another size than in its manifest."""


class ShardDigestError(ShardError):
    """A file of a shard has other bytes than those that were written."""


class ForeignTokenizerError(ShardError):
    """The tokens are of another tokenizer than the one in use."""


class EmptyCorpusError(ShardError):
    """A corpus has no document."""


@dataclass(frozen=True, kw_only=True)
class FileRecord(Config):
    """One file of a shard: its name in the folder, size and SHA-256 in hex."""

    name: str
    num_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        self.require(Path(self.name).name == self.name, f"the file name {self.name!r} leaves the folder")


@dataclass(frozen=True, kw_only=True)
class ShardRecord(Config):
    """One shard. `languages` and `sources` count its documents by tag; `loss_mask` is None where all tokens carry loss."""

    num_tokens: int
    num_documents: int
    num_images: int = 0
    languages: dict[str, int]
    sources: dict[str, int]
    tokens: FileRecord
    offsets: FileRecord
    tags: FileRecord
    loss_mask: FileRecord | None = None
    images: FileRecord | None = None

    @property
    def files(self) -> tuple[FileRecord, ...]:
        all_files = (self.tokens, self.offsets, self.tags, self.loss_mask, self.images)
        return tuple(file for file in all_files if file is not None)


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(Config):
    """The images of token shards: the folder of the image corpus relative to the shards, its digest, and the resolutions."""

    path: str = "images"
    digest: str
    resolution: ResolutionConfig


@dataclass(frozen=True, kw_only=True)
class Manifest(Config):
    """The content of `manifest.json`."""

    format: str = FORMAT
    version: int = VERSION
    tokenizer_digest: str
    vocab_size: int
    languages: tuple[str, ...]
    sources: tuple[str, ...]
    shards: tuple[ShardRecord, ...]
    metadata: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Values of further tags by key, such as `license`; the first value of each is "", for documents without the key."""
    images: ImagesConfig | None = None

    def __post_init__(self) -> None:
        self.require(self.format == FORMAT, f"the format is {self.format!r}, expected {FORMAT!r}")
        self.require(self.version == VERSION, f"version {self.version} needs another release, this one reads {VERSION}")

    @property
    def num_tokens(self) -> int:
        return sum(shard.num_tokens for shard in self.shards)

    @property
    def num_documents(self) -> int:
        return sum(shard.num_documents for shard in self.shards)

    @property
    def num_images(self) -> int:
        """Images of all documents; one that several documents show counts for each."""
        return sum(shard.num_images for shard in self.shards)

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the manifest, hence of every file: two corpora with the same digest hold the same bytes."""
        values = to_dict(self)
        for key in ("metadata", "images"):
            if not values[key]:
                del values[key]  # corpora without them keep the digest of earlier releases
        for shard in values["shards"]:
            if shard["images"] is None:
                del shard["images"], shard["num_images"]
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document as stored: tokens [n] int64, which of them to learn [n], its tags and other metadata."""

    tokens: Int64Array
    loss_mask: BoolArray
    language: str
    source: str
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Shards:
    """An open corpus. Offsets are in memory; tokens and loss masks are memory-mapped on first use."""

    def __init__(self, path: Path, manifest: Manifest, offsets: tuple[Int64Array, ...]) -> None:
        self.path, self.manifest, self.offsets = path, manifest, offsets
        self._arrays = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._map)
        self._image_slots = lru_cache(maxsize=MAX_OPEN_SHARDS)(self._map_image_slots)

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
        learnt = (self.loss_mask(shard, 0, int(self.offsets[shard][-1])) for shard in masked)
        firsts = (self.offsets[shard][:-1] for shard in masked)
        return sum(
            int((~np.logical_or.reduceat(mask_N, first_D)).sum()) for mask_N, first_D in zip(learnt, firsts, strict=True)
        )

    def languages(self, shard: int) -> npt.NDArray[np.uint16]:
        """Return the language of each document of a shard [D], as an index into the manifest's `languages`."""
        languages_D: npt.NDArray[np.uint16] = load_array(self.path, self.manifest.shards[shard].tags)[:, 0]
        return languages_D

    def document(self, shard: int, index: int) -> Document:
        """Return document `index` of a shard, with its tags.

        Raises:
            ShardDigestError: a tag is not in the manifest.
        """
        start, stop = (int(offset) for offset in self.offsets[shard][index : index + 2])
        file = self.manifest.shards[shard].tags
        try:
            language, source, *others = load_array(self.path, file)[index]
            lists = zip(self.manifest.metadata.items(), others, strict=False)  # later shards may have further keys
            tags = {
                "language": self.manifest.languages[language],
                "source": self.manifest.sources[source],
            }
            metadata = {key: values[tag] for (key, values), tag in lists if tag}
        except (IndexError, TypeError, ValueError) as error:
            raise ShardDigestError(f"{self.path / file.name} does not fit {self.path / MANIFEST}: {error}") from error
        return Document(
            tokens=self.tokens(shard, start, stop).astype(np.int64),
            loss_mask=self.loss_mask(shard, start, stop),
            metadata=metadata,
            **tags,
        )

    def _map(self, shard: int) -> tuple[TokenArray, npt.NDArray[np.uint8] | None]:
        record = self.manifest.shards[shard]
        bits = None if record.loss_mask is None else load_array(self.path, record.loss_mask)
        return load_array(self.path, record.tokens), bits

    def _map_image_slots(self, shard: int) -> npt.NDArray[Any]:
        record = self.manifest.shards[shard]
        slots_I = np.zeros(0, IMAGE_SLOTS) if record.images is None else load_array(self.path, record.images, IMAGE_SLOTS)
        if record.images is not None and (np.diff(slots_I["start"]) <= 0).any():
            raise ShardDigestError(f"{self.path / record.images.name}: the slots are not in order; pack the corpus again")
        return slots_I


def open_shards(path: Path, *, tokenizer_digest: str | None = None, verify: bool = True) -> Shards:
    """Open a folder of token shards. Sizes are always checked, digests unless `verify` is False.

    Raises:
        ManifestError: `path` has no readable manifest.
        ForeignTokenizerError: the corpus has another tokenizer than `tokenizer_digest`.
        EmptyCorpusError: the corpus has no document.
        TruncatedShardError, ShardDigestError: a file was changed after it was written.
    """
    manifest = read_manifest(path)
    if tokenizer_digest not in (None, manifest.tokenizer_digest):
        raise ForeignTokenizerError(
            f"{path / MANIFEST}: made with tokenizer {manifest.tokenizer_digest[:12]}, in use is {tokenizer_digest[:12]}; "
            "pack the corpus again with the tokenizer in use"
        )
    if manifest.num_documents == 0:
        raise EmptyCorpusError(f"{path / MANIFEST}: the corpus has no document; pack it again")
    for shard in manifest.shards:
        for file in shard.files:
            _check_size(path, file)
    if verify:
        verify_shards(path, manifest)
    return Shards(path, manifest, tuple(_load_offsets(path, shard) for shard in manifest.shards))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a folder of token shards.

    Raises:
        ManifestError: the manifest is missing or malformed.
    """
    file = path / MANIFEST
    try:
        return from_dict(Manifest, json.loads(read_document(file)))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ManifestError(f"{file} does not exist: {path} is not a folder of token shards") from error
    except (OSError, OversizeFilesError, ValueError, RecursionError, ConfigError) as error:
        raise ManifestError(f"{file} is not the manifest of token shards: {error}") from error


def verify_shards(path: Path, manifest: Manifest | None = None, share: int = 0, num_shares: int = 1) -> None:
    """Read every file, or one of `num_shares` equal shares of the files, and compare it with its digest.

    Raises:
        TruncatedShardError, ShardDigestError: a file was changed after it was written.
    """
    files = [file for shard in (manifest or read_manifest(path)).shards for file in shard.files]
    for file in files[share::num_shares]:
        _check_size(path, file)
        found = file_digest(path / file.name)
        if found != file.sha256:
            raise ShardDigestError(
                f"{path / file.name} was changed after it was written: its SHA-256 is {found[:12]}, "
                f"expected {file.sha256[:12]}; copy the corpus again or pack it again"
            )


def load_array(path: Path, file: FileRecord, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """Return an array file of a shard, memory-mapped and read-only: of integers, or of `dtype`.

    Raises:
        TruncatedShardError: the file is not such an array or cannot be read.
    """
    try:
        array = np.load(path / file.name, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a malformed header raises errors of many types, such as tokenize.TokenError
        raise TruncatedShardError(f"{path / file.name} is not a whole array file: {error}") from error
    if not isinstance(array, np.ndarray) or (array.dtype.kind not in "ui" if dtype is None else array.dtype != dtype):
        raise TruncatedShardError(f"{path / file.name} is not an array of {dtype or 'integers'}")
    return np.asarray(array)  # a plain array: slicing a memmap costs several times more


def _check_size(path: Path, file: FileRecord) -> None:
    try:
        num_bytes = (path / file.name).stat().st_size
    except FileNotFoundError as error:
        raise TruncatedShardError(f"{path / file.name} is missing; copy the corpus again or pack it again") from error
    except OSError as error:
        raise TruncatedShardError(f"{path / file.name} cannot be read: {error}") from error
    if num_bytes != file.num_bytes:
        raise TruncatedShardError(
            f"{path / file.name} has {num_bytes:,} bytes, expected {file.num_bytes:,}; "
            "copy the corpus again or pack it again"
        )


def _load_offsets(path: Path, shard: ShardRecord) -> Int64Array:
    stored = load_array(path, shard.offsets)
    if stored.dtype != np.int64 or stored.shape != (shard.num_documents + 1,):
        raise ShardDigestError(f"{path / shard.offsets.name} does not fit the counts in {path / MANIFEST}")
    offsets: Int64Array = np.array(stored)
    if offsets[0] != 0 or offsets[-1] != shard.num_tokens or np.any(np.diff(offsets) < 0):
        raise ShardDigestError(f"{path / shard.offsets.name} does not fit the counts in {path / MANIFEST}")
    return offsets
