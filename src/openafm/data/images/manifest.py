"""The manifest of an image corpus: its shards, their counts and files. `shards.py` describes the folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openafm.core.config import Config, to_dict
from openafm.core.errors import OpenAFMError
from openafm.data.shards.manifest import FileRecord

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


def stored_size(path: Path) -> int:
    """Return the size of a file; -1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))
