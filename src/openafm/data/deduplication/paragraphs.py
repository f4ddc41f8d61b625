"""Boilerplate: paragraphs that occur in many documents of a domain or of the corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from openafm.core.libraries import pyarrow
from openafm.data.deduplication.base import Deduplication, DeduplicationConfig
from openafm.data.deduplication.exact import normalized_text
from openafm.data.deduplication.groups import (
    MEMBER,
    IdentityColumns,
    hash128,
    read_shard,
    read_signatures,
    rows_with,
    working_folder,
    write_tables,
)
from openafm.data.deduplication.sorting import ExternalSort, Records
from openafm.data.web.documents import Dropped, WebDocument
from openafm.data.web.urls import domain_of

if TYPE_CHECKING:
    import pyarrow as pa

REMOVED_KEY = "paragraphs.removed"
_FENCE = "```"
_REMOVAL = np.dtype([("shard", "<u4"), ("position", "<u8"), ("paragraph", "<u8")])


@dataclass(frozen=True, kw_only=True)
class ParagraphsConfig(DeduplicationConfig):
    """Remove paragraphs that occur in at least `min_documents` documents of one domain, or of the corpus.

    Paragraphs are separated by empty lines; a fenced code block is one paragraph. They are compared like texts in
    `ExactConfig`. Those with fewer than `min_letters` letters and digits are kept: headings repeat for good reasons. With
    `keep` "once", the document with the best quality, then the earliest identifier, keeps the paragraph. A document of which
    nothing is left is dropped.

    Memory of the reduction: `memory_mb` plus the row groups of one shard. Disk: at most 104 bytes for each
    paragraph of each document.
    """

    REASONS = ("only_repeated_paragraphs",)

    scope: Literal["domain", "corpus"] = "domain"
    min_documents: int = 5
    min_letters: int = 20
    keep: Literal["once", "none"] = "once"
    quality: str = "quality.score"
    memory_mb: int = 256

    def __post_init__(self) -> None:
        self.require(self.min_documents >= 2, f"min_documents must be at least 2, got {self.min_documents}")
        self.require(self.min_letters >= 1, f"min_letters must be at least 1, got {self.min_letters}")
        self.require(self.memory_mb >= 1, f"memory_mb must be at least 1, got {self.memory_mb}")

    def build(self) -> Deduplication:
        return ParagraphsDeduplication(self)


class ParagraphsDeduplication(Deduplication):
    """See `ParagraphsConfig`."""

    def __init__(self, config: ParagraphsConfig) -> None:
        self._config = config

    def signatures(self, documents: Iterable[WebDocument]) -> pa.Table:
        """Return one row for each paragraph, once for each document."""
        pa = pyarrow()
        identities = IdentityColumns(self._config.quality)
        positions: list[int] = []
        hashes: list[tuple[int, int]] = []
        for position, document in enumerate(documents):
            found = dict.fromkeys(pair for _, pair in self._paragraphs(document) if pair is not None)
            hashes += found
            positions += [position] * len(found)
            identities.add(document, len(found))
        halves = {name: pa.array([pair[half] for pair in hashes], pa.uint64()) for half, name in enumerate(("high", "low"))}
        return pa.table(identities.columns() | {"position": pa.array(positions, pa.uint64())} | halves)

    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        pa = pyarrow()
        budget = (self._config.memory_mb << 20) // 2  # two sorts are open at a time
        with working_folder(out) as folder:
            sort = ExternalSort(folder, "paragraphs", MEMBER, MEMBER.names or (), budget)
            for part in read_signatures(signatures, ("id", "quality", "digest", "position", "high", "low")):
                members = part.members()
                for name, column in (("position", "position"), ("group_high", "high"), ("group_low", "low")):
                    members[name] = part.column(column)
                sort.add(members)
            removals = ExternalSort(folder, "removals", _REMOVAL, _REMOVAL.names or (), budget)
            keeps_one = self._config.keep == "once"
            for members in repeated(sort.merged(), self._config.min_documents, keeps_one):
                found = np.zeros(len(members), _REMOVAL)
                for name, column in (("shard", "shard"), ("position", "position"), ("paragraph", "group_low")):
                    found[name] = members[column]
                removals.add(found)
            schema = pa.schema([("shard", pa.uint32()), ("position", pa.uint64()), ("paragraph", pa.uint64())])
            tables = (
                pa.Table.from_arrays([pa.array(block[name]) for name in schema.names], schema=schema)
                for block in removals.merged()
            )
            write_tables(out, schema, tables)

    def read_decisions(self, path: Path, shard: int) -> Mapping[int, set[int]]:
        """Return the hashes of the paragraphs to remove, by position."""
        table = read_shard(path, shard, ("position", "paragraph"))
        found: dict[int, set[int]] = {}
        for position, paragraph in zip(*(table.column(i).to_pylist() for i in ("position", "paragraph")), strict=True):
            found.setdefault(position, set()).add(paragraph)
        return found

    def touched(self, batch: pa.RecordBatch, first: int, decisions: Any) -> Sequence[int]:
        return rows_with(decisions, first, batch.num_rows)

    def apply(self, document: WebDocument, position: int, decisions: Any) -> WebDocument | Dropped:
        removed = decisions.get(position)
        if not removed:
            return document
        cuts = [span for span, pair in self._paragraphs(document) if pair is not None and pair[1] in removed]
        shortened = without(document, cuts)
        if not any(map(str.isalnum, shortened.text)):
            return Dropped(reason="only_repeated_paragraphs", detail=f"{len(cuts)} paragraphs", url=document.url)
        return dataclasses.replace(shortened, metadata={**document.metadata, REMOVED_KEY: str(len(cuts))})

    def _paragraphs(self, document: WebDocument) -> Iterator[tuple[tuple[int, int], tuple[int, int] | None]]:
        """Yield the span of each paragraph and the hash by which it is compared; no hash if it is too short."""
        scope = domain_of(document.url) if self._config.scope == "domain" else ""
        for start, stop in paragraph_spans(document.text):
            text = document.text[start:stop]
            is_compared = _has_letters(text, self._config.min_letters)
            yield (start, stop), hash128(f"{scope}\0{normalized_text(text)}") if is_compared else None


def _has_letters(text: str, count: int) -> bool:
    """Return True if a text has at least `count` letters and digits; most paragraphs have them near their beginning."""
    return sum(map(str.isalnum, text[: 2 * count])) >= count or sum(map(str.isalnum, text)) >= count


def paragraph_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start of each paragraph of a Markdown text and the start of the next one."""
    start, place, is_fenced, is_empty_before = 0, 0, False, False
    for line in text.splitlines(keepends=True):
        is_empty = not line.strip() and not is_fenced
        if is_empty_before and not is_empty and place > start:
            yield start, place
            start = place
        if line.lstrip().startswith(_FENCE):
            is_fenced = not is_fenced
        is_empty_before = is_empty
        place += len(line)
    if place > start:
        yield start, place


def without(document: WebDocument, cuts: Sequence[tuple[int, int]]) -> WebDocument:
    """Return the document without these spans of its text. Media of a removed span move to its place."""
    edges = [0, *(edge for cut in cuts for edge in cut), len(document.text)]
    text = "".join(document.text[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)).rstrip()
    media = tuple(
        dataclasses.replace(each, offset=min(each.offset - _removed_before(each.offset, cuts), len(text)))
        for each in document.media
    )
    return dataclasses.replace(document, text=text, media=media)


def repeated(blocks: Iterable[Records], min_members: int, keeps_first: bool) -> Iterator[Records]:
    """Yield the members of groups with at least `min_members`, without the first of each if `keeps_first`.

    `blocks` are in the order of the fields of `MEMBER`. At most `min_members` members are held beside a block.
    """
    held = np.empty(0, MEMBER)
    current = None  # a group that is known to be large enough, whose first member was seen
    for block in blocks:
        members = np.concatenate([held, block])
        is_start = np.ones(len(members), bool)
        is_start[1:] = (np.diff(members["group_high"]) != 0) | (np.diff(members["group_low"]) != 0)
        is_start[0] = _group(members[0]) != current
        starts = np.flatnonzero(is_start)
        sizes = np.diff(np.append(starts, len(members)))
        is_known = np.ones(int(starts[0]) if len(starts) else len(members), bool)
        is_yielded = np.concatenate([is_known, np.repeat(sizes >= min_members, sizes)])
        if len(starts):
            is_open = sizes[-1] < min_members
            held = members[starts[-1] :].copy() if is_open else np.empty(0, MEMBER)
            current = None if is_open else _group(members[-1])
        found = members[is_yielded & ~(is_start & keeps_first)]
        if len(found):
            yield found


def _group(member: Any) -> tuple[int, int]:
    return int(member["group_high"]), int(member["group_low"])


def _removed_before(offset: int, cuts: Sequence[tuple[int, int]]) -> int:
    return sum(min(offset, stop) - start for start, stop in cuts if start < offset)
