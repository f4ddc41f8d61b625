"""The manifest of token shards, and the errors of reading them. `token_shards.py` describes the files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from openafm.core.config import Config, to_dict
from openafm.core.errors import OpenAFMError
from openafm.data.images.resolution import ResolutionConfig

MANIFEST = "manifest.json"
FORMAT = "openafm.token_shards"
VERSION = 1

IMAGE_SLOTS = np.dtype(
    [("start", "<i8"), ("num_tokens", "<i4"), ("digest", "S32"), ("shard", "<u4"), ("row", "<u4"), ("mode", "u1")]
)
"""An image in a shard of tokens: its first position and number of tokens, the SHA-256 of its bytes, the shard of the image
corpus and the row of its index, and the index of its mode in `images.resolution.MODES`. Slots are sorted by `start`."""


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

    @cached_property
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
