"""Exact deduplication: documents with one canonical URL, and documents with one text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from openafm.core.libraries import pyarrow
from openafm.data.deduplication.base import Deduplication, DeduplicationConfig
from openafm.data.deduplication.groups import (
    MEMBER,
    DocumentDeduplication,
    DropWriter,
    IdentityColumns,
    disk_array,
    first_numbers,
    hash128,
    read_signatures,
    working_folder,
)
from openafm.data.deduplication.sorting import ExternalSort
from openafm.data.web.documents import WebDocument
from openafm.data.web.urls import canonical_url

if TYPE_CHECKING:
    import pyarrow as pa

Criterion = Literal["url", "text"]

_NO_VALUE = (0, 0)


@dataclass(frozen=True, kw_only=True)
class ExactConfig(DeduplicationConfig):
    """Keep one document of each canonical URL, then, among these, one of each text.

    Texts are equal if they are after Unicode normalization (NFKC), in lower case and with single spaces. Of a group the
    document with the best quality is kept, then the one with the earliest identifier; `quality` names the value of the
    metadata, which counts as 0 where it is missing. A document without a URL is in no group of URLs.

    Memory of the reduction: `memory_mb` plus the row groups of one shard. Disk: at most 138
    bytes for each document.
    """

    REASONS = ("duplicate_url", "duplicate_text")

    by: tuple[Criterion, ...] = ("url", "text")
    quality: str = "quality.score"
    memory_mb: int = 256

    def __post_init__(self) -> None:
        self.require(len(self.by) > 0, "by is empty; use url, text or both")
        self.require(len(set(self.by)) == len(self.by), f"by repeats a criterion: {', '.join(self.by)}")
        self.require(self.memory_mb >= 1, f"memory_mb must be at least 1, got {self.memory_mb}")

    def build(self) -> Deduplication:
        return ExactDeduplication(self)


class ExactDeduplication(DocumentDeduplication):
    """See `ExactConfig`."""

    def __init__(self, config: ExactConfig) -> None:
        self._config = config
        self.reasons = tuple(f"duplicate_{name}" for name in config.by)

    def signatures(self, documents: Iterable[WebDocument]) -> pa.Table:
        pa = pyarrow()
        identities = IdentityColumns(self._config.quality)
        hashes: dict[str, list[int]] = {f"{name}_{half}": [] for name in self._config.by for half in ("high", "low")}
        for document in documents:
            identities.add(document)
            for name in self._config.by:
                high, low = _hash_of(document, name)
                hashes[f"{name}_high"].append(high)
                hashes[f"{name}_low"].append(low)
        return pa.table(identities.columns() | {name: pa.array(each, pa.uint64()) for name, each in hashes.items()})

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        budget = (self._config.memory_mb << 20) // 2  # two sorts are open at a time
        first_of = first_numbers(signatures)
        with working_folder(out) as folder:
            writer = DropWriter(folder, budget)
            is_dropped = disk_array(folder / "dropped", bool, int(first_of[-1]))
            for reason, name in enumerate(self._config.by):
                sort = ExternalSort(folder, "members", MEMBER, MEMBER.names or (), budget)
                columns = ("id", "quality", "digest", f"{name}_high", f"{name}_low")
                for part in read_signatures(signatures, columns):
                    first = first_of[part.shard] + part.start
                    members = part.members()
                    members["group_high"], members["group_low"] = (part.column(each) for each in columns[-2:])
                    has_value = (members["group_high"] | members["group_low"]) != 0
                    sort.add(members[has_value & ~is_dropped[first : first + len(part)]])
                for dropped in writer.add_groups(sort.merged(), reason):
                    is_dropped[first_of[dropped["shard"]] + dropped["position"].astype(np.int64)] = True
            del is_dropped
            writer.write(out)


def normalized_text(text: str) -> str:
    """Return a text in which forms of characters, case and white space do not differ."""
    normalized = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(normalized.lower().split())


def _hash_of(document: WebDocument, name: Criterion) -> tuple[int, int]:
    if name == "text":
        return hash128(normalized_text(document.text))
    url = canonical_url(document.url) or document.url
    return hash128(url) if url else _NO_VALUE
