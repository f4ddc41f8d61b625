"""The rows of a source: documents packed into rows, in groups of shards, in memory or stored and memory-mapped.

A group is consecutive shards with up to `GROUP_DOCUMENTS` documents. Its rows depend on its documents, the length of a row
and the seed alone. The rows of a source with one group are computed when it is opened. Those of a larger source are computed
once, a group at a time, and stored in the cache folder; opening then reads a small record per group:

    rows/KEY/00012.json             the rows, tokens and documents of each part of group 12
    rows/KEY/00012.0.pieces.npy     [P] PIECE: the pieces of documents of part 0, row by row
    rows/KEY/00012.0.starts.npy     [R + 1] int64: row r is pieces[starts[r] : starts[r + 1]]

A part is the whole source, or one language of a source that is sampled by language.

Shape suffixes: D documents, P pieces, R rows, G groups.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import UsageError
from openafm.core.files import atomic_file, cache_home, file_digest, write_json
from openafm.core.progress import progress
from openafm.data.loading.permutation import Permutation
from openafm.data.loading.rows import pack_rows, split_documents, starts_between
from openafm.data.shards.files import LocalFiles
from openafm.data.shards.manifest import FileRecord, Manifest
from openafm.data.shards.token_shards import Shards

GROUP_DOCUMENTS = 1 << 20
VERSION = 1
MAX_OPEN_GROUPS = 128
UNDETERMINED = "und"  # the language of documents without one (BCP 47)

PIECE = np.dtype([("start", "<i8"), ("shard", "<u4"), ("length", "<u4"), ("continues", "?")])
"""Part of a document in a row: its shard, first position and length there, and whether its document continues after it."""

Int64Array = npt.NDArray[np.int64]
PieceArray = npt.NDArray[Any]


class ShortRowError(UsageError):
    """Rows have fewer tokens than an image."""


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """The rows of one part of a group: row r is `pieces_P[starts_R1[r] : starts_R1[r + 1]]`."""

    pieces_P: PieceArray
    starts_R1: Int64Array
    num_documents: int

    @property
    def num_rows(self) -> int:
        return len(self.starts_R1) - 1

    @property
    def num_tokens(self) -> int:
        return int(self.pieces_P["length"].sum(dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class RowPart:
    """The rows of a part of a source. `group` returns those of one group, `num_rows_G` counts them."""

    name: str
    num_rows_G: Int64Array
    num_tokens: int
    num_documents: int
    group: Callable[[int], RowGroup]


@dataclass(frozen=True, kw_only=True)
class RowsKey:
    """What the rows of a source depend on, besides its documents.

    Attributes:
        name: the name of the source, part of the seed of each part.
        languages: None packs all documents together; otherwise each of these languages, or each language if it is empty.
    """

    name: str
    languages: tuple[str, ...] | None
    row_tokens: int
    seed: int

    def digest(self, manifest: Manifest) -> str:
        """Return the SHA-256 in hex of the key and of the corpus: equal digests have equal rows."""
        values = (VERSION, GROUP_DOCUMENTS, manifest.digest, self.name, self.languages, self.row_tokens, self.seed)
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PartRecord(Config):
    """The stored rows of one part of a group."""

    num_rows: int
    num_tokens: int
    num_documents: int
    pieces: FileRecord
    starts: FileRecord


@dataclass(frozen=True, kw_only=True)
class GroupRecord(Config):
    """The stored rows of a group, by part."""

    parts: dict[str, PartRecord]


def shard_groups(manifest: Manifest) -> list[range]:
    """Return the shards of each group."""
    groups: list[range] = []
    first = num_documents = 0
    for shard, record in enumerate(manifest.shards):
        if shard > first and num_documents + record.num_documents > GROUP_DOCUMENTS:
            groups.append(range(first, shard))
            first, num_documents = shard, 0
        num_documents += record.num_documents
    return [*groups, range(first, len(manifest.shards))]


def row_parts(shards: Shards, key: RowsKey) -> list[RowPart]:
    """Return the rows of all parts of a source, by name. Missing groups of a large source are packed and stored first.

    Raises:
        ShardError: a file of the source cannot be read.
        ShortRowError: rows have fewer tokens than an image.
        OutOfSpaceError: the cache folder is full.
    """
    groups = shard_groups(shards.manifest)
    if len(groups) == 1:
        packed = pack_group(shards, groups[0], 0, key)
        return [_part(name, [found], {0: found}.__getitem__) for name, found in packed.items()]
    records = prepare_rows(shards, key)
    files = LocalFiles(_folder(shards, key), "first_use")
    names = sorted({name for record in records for name in record.parts})
    return [_stored_part(name, [record.parts.get(name) for record in records], files) for name in names]


def prepare_rows(shards: Shards, key: RowsKey, share: int = 0, num_shares: int = 1) -> list[GroupRecord]:
    """Pack and store the groups that are not stored yet, or one of `num_shares` equal shares of them; return their records.

    Processes that pack the same group write the same bytes, so they need no lock. A call that was killed is continued by the
    next one.
    """
    groups, folder = shard_groups(shards.manifest), _folder(shards, key)
    if len(groups) == 1:
        return []
    mine = range(share, len(groups), num_shares)
    records = {number: record for number in mine if (record := _read_record(folder, number)) is not None}
    if len(records) < len(mine):
        with progress(f"pack rows of {key.name}", len(mine)) as bar:
            for done, number in enumerate(mine):
                bar.update(done, f"{len(groups):,} groups of shards")
                if number not in records:
                    packed = pack_group(shards, groups[number], number, key)
                    records[number] = _store(folder, number, packed)
    return [records[number] for number in mine]


def pack_group(shards: Shards, group: Sequence[int], number: int, key: RowsKey) -> dict[str, RowGroup]:
    """Pack the documents of a group into rows by best-fit decreasing, each part by itself."""
    offsets = [shards.offsets(shard) for shard in group]
    shard_D = np.repeat(np.array(group, dtype=np.int64), [len(some) - 1 for some in offsets])
    start_D = np.concatenate([some[:-1] for some in offsets])
    stop_D = np.concatenate([some[1:] for some in offsets])
    packed = {}
    columns = (shard_D, start_D, stop_D)
    for name, chosen_D in _chosen(shards, group, key).items():
        documents = columns if chosen_D is None else tuple(column_D[chosen_D] for column_D in columns)
        packed[name] = _pack(name, shards, documents, number, key)
    return packed


def _chosen(shards: Shards, group: Sequence[int], key: RowsKey) -> Mapping[str, npt.NDArray[np.bool_] | None]:
    """Return the documents of each part of a group; None for all of them."""
    if key.languages is None:
        return {key.name: None}
    language_D = np.concatenate([shards.languages(shard) for shard in group])
    languages = shards.manifest.languages
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for tag in sorted(np.unique(language_D), key=lambda tag: languages[tag]):
        language = languages[tag] or UNDETERMINED  # documents without a language count as `und`
        if not key.languages or language in key.languages:
            name = f"{key.name}/{language}"
            found[name] = found.get(name, np.False_) | (language_D == tag)
    return found


def _pack(name: str, shards: Shards, documents: tuple[Int64Array, ...], number: int, key: RowsKey) -> RowGroup:
    """Pack documents, given by shard, start and stop, into the rows of one part."""
    shard_D, start_D, stop_D = documents
    lengths_D = stop_D - start_D
    starts = _starts(name, shards, shard_D, start_D, stop_D, key.row_tokens)
    pieces = split_documents(lengths_D, key.row_tokens, starts)
    num_pieces = len(pieces.length_P)
    seed = (key.seed, "ties", name, number) if number else (key.seed, "ties", name)
    tie_order_P = Permutation(num_pieces, *seed)(np.arange(num_pieces))
    rows = pack_rows(pieces.length_P, key.row_tokens, tie_order_P)
    document_P = pieces.document_P[rows.order_P]
    pieces_P = np.empty(num_pieces, dtype=PIECE)
    pieces_P["shard"] = shard_D[document_P]
    pieces_P["length"] = pieces.length_P[rows.order_P]
    pieces_P["start"] = start_D[document_P] + pieces.start_P[rows.order_P]
    pieces_P["continues"] = pieces_P["start"] + pieces_P["length"] < stop_D[document_P]
    return RowGroup(pieces_P=pieces_P, starts_R1=rows.row_starts_R1, num_documents=len(lengths_D))


def _starts(
    name: str, shards: Shards, shard_D: Int64Array, start_D: Int64Array, stop_D: Int64Array, row_tokens: int
) -> dict[int, list[int]]:
    """Return the starts of the pieces of documents with images that are longer than a row.

    An image is not split, nor are its start and end tokens taken from it.
    """
    if shards.manifest.images is None:
        return {}
    starts: dict[int, list[int]] = {}
    for index in np.flatnonzero(stop_D - start_D > row_tokens).tolist():
        shard, start, stop = (int(column[index]) for column in (shard_D, start_D, stop_D))
        slots_I = shards.image_slots(shard, start, stop)
        longest = max(slots_I["num_tokens"].tolist(), default=0) + 2
        if longest > row_tokens:
            raise ShortRowError(
                f"{name}: row_tokens {row_tokens} is below the {longest} tokens of an image; "
                "use longer rows, or pack the images in another resolution mode"
            )
        first_I = slots_I["start"] - start - 1
        solid = zip(first_I.tolist(), (first_I + slots_I["num_tokens"] + 2).tolist(), strict=True)
        starts[index] = starts_between(stop - start, row_tokens, solid)
    return starts


def _part(name: str, groups: Sequence[RowGroup], group: Callable[[int], RowGroup]) -> RowPart:
    return RowPart(
        name=name,
        num_rows_G=np.array([one.num_rows for one in groups]),
        num_tokens=sum(one.num_tokens for one in groups),
        num_documents=sum(one.num_documents for one in groups),
        group=group,
    )


def _stored_part(name: str, records: Sequence[PartRecord | None], files: LocalFiles) -> RowPart:
    """Return a part whose groups are mapped when they are first read."""

    @lru_cache(maxsize=MAX_OPEN_GROUPS)
    def group(number: int) -> RowGroup:
        record = records[number]
        assert record is not None, "a group without rows is not read"
        pieces_P = files.array(record.pieces, PIECE)
        return RowGroup(pieces_P=pieces_P, starts_R1=files.array(record.starts), num_documents=record.num_documents)

    present = [record for record in records if record is not None]
    return RowPart(
        name=name,
        num_rows_G=np.array([0 if record is None else record.num_rows for record in records]),
        num_tokens=sum(record.num_tokens for record in present),
        num_documents=sum(record.num_documents for record in present),
        group=group,
    )


def _folder(shards: Shards, key: RowsKey) -> Path:
    return cache_home() / "rows" / key.digest(shards.manifest)


def _read_record(folder: Path, number: int) -> GroupRecord | None:
    """Return the record of a stored group; None if it has to be packed, also because a file is missing or cut."""
    try:
        record = from_dict(GroupRecord, json.loads((folder / f"{number:05}.json").read_bytes()))
        files = [file for part in record.parts.values() for file in (part.pieces, part.starts)]
        is_whole = all((folder / file.name).stat().st_size == file.num_bytes for file in files)
    except (OSError, ValueError, ConfigError):
        return None
    return record if is_whole else None


def _store(folder: Path, number: int, packed: Mapping[str, RowGroup]) -> GroupRecord:
    parts = {}
    for position, (name, group) in enumerate(packed.items()):
        parts[name] = PartRecord(
            num_rows=group.num_rows,
            num_tokens=group.num_tokens,
            num_documents=group.num_documents,
            pieces=_save(folder / f"{number:05}.{position}.pieces.npy", group.pieces_P),
            starts=_save(folder / f"{number:05}.{position}.starts.npy", group.starts_R1),
        )
    record = GroupRecord(parts=parts)
    write_json(folder / f"{number:05}.json", to_dict(record))
    return record


def _save(path: Path, array: npt.NDArray[Any]) -> FileRecord:
    with atomic_file(path) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
    return FileRecord(name=path.name, num_bytes=path.stat().st_size, sha256=file_digest(path))
