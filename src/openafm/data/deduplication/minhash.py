"""Near-duplicates by MinHash and locality-sensitive hashing (LSH), grouped out of core.

The signature of a document has `num_hashes` minima of hashes of its shingles; two documents of Jaccard similarity s agree in
each with probability s. Documents that agree in all rows of at least one band are candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openafm.core.libraries import pyarrow
from openafm.data.deduplication.base import Deduplication, DeduplicationConfig
from openafm.data.deduplication.components import Numbers, find_roots, join
from openafm.data.deduplication.groups import (
    MEMBER,
    DocumentDeduplication,
    DropWriter,
    IdentityColumns,
    disk_array,
    first_numbers,
    read_signatures,
    working_folder,
)
from openafm.data.deduplication.shingles import Hashes, combined, rensa, shingle_hashes, tokens_of
from openafm.data.deduplication.sorting import ExternalSort, Records
from openafm.data.web.documents import WebDocument

if TYPE_CHECKING:
    import pyarrow as pa

Signatures = npt.NDArray[np.uint32]  # (documents, hashes)

WINDOW = 8
"""Each document of a bucket is compared to this many of the next ones, so that time is linear in the bucket's size."""
ENTRY = np.dtype([("bucket", "<u8"), ("digest", "<u8"), ("number", "<i8")])
"""A document in a bucket of one band; `number` is its place in the order of all documents."""
_DOCUMENTS_PER_BATCH = 256
_PAIRS_PER_BATCH = 1 << 13
_NUM_DEVIATIONS = 2.5


@dataclass(frozen=True, kw_only=True)
class MinHashConfig(DeduplicationConfig):
    """Keep one document of each group of near-duplicates.

    Shingles are of `shingle_words` words, or `shingle_characters` characters in scripts without spaces. The bands are the
    most selective ones that find a pair at `threshold` with probability `recall`. With `verify` a candidate pair counts if
    its signatures agree in at least a share of `threshold` minus 2.5 standard deviations of that share. Groups are the
    connected components of the pairs; the document with the best quality is kept, then the one with the earliest identifier.
    Documents without words or characters are kept.

    Memory of the reduction: `memory_mb` plus 64 MB plus the row groups of one shard, for any number of documents. Disk: 33
    bytes for each document, with `verify` 4 x `num_hashes` more, and 137 for each near-duplicate.
    """

    REASONS = ("near_duplicate",)
    VERSION = 2

    threshold: float = 0.8
    recall: float = 0.97
    num_hashes: int = 112
    shingle_words: int = 5
    shingle_characters: int = 8
    verify: bool = True
    seed: int = 1
    quality: str = "quality.score"
    memory_mb: int = 256

    def __post_init__(self) -> None:
        self.require(0 < self.threshold < 1, f"threshold {self.threshold} is not in (0, 1)")
        self.require(0 < self.recall < 1, f"recall {self.recall} is not in (0, 1)")
        self.require(1 <= self.num_hashes <= 512, f"num_hashes {self.num_hashes} is not in [1, 512]")
        self.require(min(self.shingle_words, self.shingle_characters) >= 1, "shingles have at least 1 word or character")
        self.require(self.memory_mb >= 1, f"memory_mb must be at least 1, got {self.memory_mb}")
        self.require(self.num_rows > 0, f"{self.num_hashes} hashes do not reach recall {self.recall}; raise num_hashes")

    @property
    def num_rows(self) -> int:
        """Hashes in a band; 0 if the target is not reached by any number."""
        found = (rows for rows in range(1, self.num_hashes + 1) if self.probability(self.threshold, rows) >= self.recall)
        return max(found, default=0)

    @property
    def num_bands(self) -> int:
        return self.num_hashes // self.num_rows

    def probability(self, similarity: float, num_rows: int) -> float:
        """Return the probability that a pair of this similarity is a candidate."""
        return float(1 - (1 - similarity**num_rows) ** (self.num_hashes // num_rows))

    def build(self) -> Deduplication:
        rensa()  # a missing library fails here, before any work
        return MinHashDeduplication(self)


class MinHashDeduplication(DocumentDeduplication):
    """See `MinHashConfig`."""

    reasons = MinHashConfig.REASONS

    def __init__(self, config: MinHashConfig) -> None:
        self._config = config
        self._bands = tuple(f"band_{band:02d}" for band in range(config.num_bands))
        deviation = math.sqrt(config.threshold * (1 - config.threshold) / config.num_hashes)
        self._min_share = config.threshold - _NUM_DEVIATIONS * deviation

    def signatures(self, documents: Iterable[WebDocument]) -> pa.Table:
        pa = pyarrow()
        identities = IdentityColumns(self._config.quality)
        num_shingles: list[int] = []
        buckets: list[Hashes] = []
        minhashes: list[Signatures] = []
        for shingles in _batched(self._shingles(documents, identities)):
            num_shingles += [len(each) for each in shingles]
            minhash = minhash_signatures(shingles, self._config.num_hashes, self._config.seed)
            buckets.append(self._buckets(minhash))
            if self._config.verify:
                minhashes.append(minhash)
        columns = identities.columns() | {"num_shingles": pa.array(num_shingles, pa.uint32())}
        all_buckets = np.concatenate([np.empty((0, len(self._bands)), np.uint64), *buckets])
        columns |= {name: pa.array(all_buckets[:, band]) for band, name in enumerate(self._bands)}
        if self._config.verify:
            kind = pa.binary(4 * self._config.num_hashes)
            columns["minhash"] = pa.array([row.astype("<u4").tobytes() for rows in minhashes for row in rows], kind)
        return pa.table(columns)

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        budget = (self._config.memory_mb << 20) // 2  # two sorts are open at a time
        first_of = first_numbers(signatures)
        with working_folder(out) as folder:
            links = disk_array(folder / "links", np.int64, int(first_of[-1]))
            for start in range(0, len(links), _PAIRS_PER_BATCH):
                links[start : start + _PAIRS_PER_BATCH] = np.arange(start, min(start + _PAIRS_PER_BATCH, len(links)))
            minhashes = self._stored(signatures, folder / "minhashes", len(links)) if self._config.verify else None
            for name in self._bands:
                sort = ExternalSort(folder, name, ENTRY, ("bucket", "digest", "number"), budget)
                for part in read_signatures(signatures, ("digest", "num_shingles", name)):
                    entries = np.zeros(len(part), ENTRY)
                    entries["bucket"], entries["digest"] = part.column(name), part.column("digest")
                    entries["number"] = first_of[part.shard] + part.start + np.arange(len(part))
                    sort.add(entries[part.column("num_shingles") > 0])
                for left, right in candidates(sort.merged()):
                    self._join(links, minhashes, left, right)
            write_drops(signatures, first_of, links, out, folder, budget)

    def _shingles(self, documents: Iterable[WebDocument], identities: IdentityColumns) -> Iterator[Hashes]:
        for document in documents:
            identities.add(document)
            tokens = tokens_of(document.text)
            size = self._config.shingle_characters if tokens.is_spaceless else self._config.shingle_words
            yield shingle_hashes(tokens.hashes, size)

    def _buckets(self, minhash: Signatures) -> Hashes:
        """Return the hash of each band of each signature: (documents, bands)."""
        num_bands, num_rows = self._config.num_bands, self._config.num_rows
        rows = minhash[:, : num_bands * num_rows].reshape(-1, num_bands, num_rows).astype(np.uint64)
        return combined(rows[:, :, row] for row in range(num_rows))

    def _stored(self, signatures: Sequence[Path], path: Path, num_documents: int) -> Signatures:
        """Return the signatures of all documents as an array in a file."""
        num_hashes = self._config.num_hashes
        stored = disk_array(path, np.uint32, num_documents * num_hashes).reshape(-1, num_hashes)
        number = 0
        for part in read_signatures(signatures, ("minhash",)):
            column = part.batch.column("minhash")
            rows = np.frombuffer(column.buffers()[1], "<u4").reshape(-1, num_hashes)
            stored[number : number + len(part)] = rows[column.offset : column.offset + len(part)]
            number += len(part)
        return stored

    def _join(self, links: Numbers, minhashes: Signatures | None, left: Numbers, right: Numbers) -> None:
        roots = find_roots(links, np.concatenate([left, right]))
        differ = roots[: len(left)] != roots[len(left) :]
        left, right = left[differ], right[differ]
        if minhashes is not None and len(left):
            agree = np.mean(minhashes[left] == minhashes[right], axis=1) >= self._min_share
            left, right = left[agree], right[agree]
        join(links, left, right)


def minhash_signatures(shingles: Sequence[Hashes], num_hashes: int, seed: int) -> Signatures:
    """Return one row of minima for each set of shingles."""
    offsets = np.cumsum([0, *(len(each) for each in shingles)]).astype(np.uint64)
    flat = np.concatenate([np.empty(0, np.uint64), *shingles])
    digests = rensa().RMinHash.digest_matrix_from_flat_token_hashes(flat, offsets, num_hashes, seed)
    return np.array(digests.to_rows(), np.uint32).reshape(len(shingles), num_hashes)


def candidates(blocks: Iterable[Records]) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the pairs of documents in one bucket that are at most `WINDOW` entries apart.

    `blocks` are sorted by bucket and then by the digest of the document, so that pairs do not depend on the order of shards.
    """
    tail = np.empty(0, ENTRY)
    for block in blocks:
        for start in range(0, len(block), _PAIRS_PER_BATCH):
            fresh = block[start : start + _PAIRS_PER_BATCH]
            entries = np.concatenate([tail, fresh])
            for distance in range(1, min(WINDOW, len(entries) - 1) + 1):
                first = max(len(tail) - distance, 0)  # pairs within the tail were yielded before
                left, right = entries[first : len(entries) - distance], entries[first + distance :]
                same = left["bucket"] == right["bucket"]
                if same.any():
                    yield left["number"][same], right["number"][same]
            tail = entries[-WINDOW:]


def write_drops(
    signatures: Sequence[Path], first_of: Numbers, links: Numbers, out: Path, folder: Path, memory_bytes: int
) -> None:
    """Write the decisions on linked documents: of each group all but one are dropped. `folder` is for working files."""
    writer = DropWriter(folder, memory_bytes)
    sort = ExternalSort(folder, "members", MEMBER, MEMBER.names or (), memory_bytes)
    for members in grouped_members(signatures, first_of, links, disk_array(folder / "parents", bool, len(links))):
        sort.add(members)
    for _ in writer.add_groups(sort.merged()):
        pass
    writer.write(out)


def grouped_members(signatures: Sequence[Path], first_of: Numbers, links: Numbers, is_parent: Records) -> Iterator[Records]:
    """Yield the documents of the components with at least two documents."""
    for start in range(0, int(first_of[-1]), _PAIRS_PER_BATCH):
        numbers = np.arange(start, min(start + _PAIRS_PER_BATCH, int(first_of[-1])))
        roots = find_roots(links, numbers)
        is_parent[roots[roots != numbers]] = True
    for part in read_signatures(signatures, ("id", "quality", "digest")):
        numbers = first_of[part.shard] + part.start + np.arange(len(part))
        members = part.members()
        members["group_high"] = roots = links[numbers]
        yield members[(roots != numbers) | is_parent[numbers]]


def _batched(shingles: Iterator[Hashes]) -> Iterator[list[Hashes]]:
    batch: list[Any] = []
    for each in shingles:
        batch.append(each)
        if len(batch) == _DOCUMENTS_PER_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
