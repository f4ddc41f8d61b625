"""Groups of documents of which one is kept: the columns that decide which one, and the decisions on the others."""

from __future__ import annotations

import contextlib
import hashlib
import math
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openafm.core.files import atomic_file, room_for
from openafm.core.libraries import pyarrow
from openafm.data.deduplication.base import Deduplication, SignaturesError
from openafm.data.deduplication.sorting import ExternalSort, Records
from openafm.data.web.documents import Dropped, WebDocument

if TYPE_CHECKING:
    import pyarrow as pa

ID_BYTES = 40
_ROWS_PER_BATCH = 1 << 14
_ROWS_PER_GROUP = 1 << 16
_PLACE = [("shard", "<u4"), ("position", "<u8")]
MEMBER = np.dtype(
    [("group_high", "<u8"), ("group_low", "<u8"), ("penalty", "<f8"), ("id", f"S{ID_BYTES}"), ("digest", "<u8"), *_PLACE]
)
"""A document of a group. In the order of these fields the first document of a group is kept: the best quality, then the
earliest identifier. `digest` decides between different documents of one identifier, the place between equal documents."""
DROP = np.dtype([*_PLACE, ("reason", "<u1"), ("kept", f"S{ID_BYTES}")])


@dataclass(frozen=True)
class Part:
    """Rows of the signatures of one shard. `start` is the position of the first one in the shard."""

    shard: int
    start: int
    batch: Any

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def column(self, name: str) -> Records:
        """Return a column of numbers."""
        return np.asarray(self.batch.column(name).to_numpy(zero_copy_only=False))

    def members(self) -> Records:
        """Return the documents as members of group 0."""
        found = np.zeros(len(self), MEMBER)
        found["penalty"] = -self.column("quality")
        found["digest"] = self.column("digest")
        found["id"] = _fixed_bytes(self.batch.column("id"))
        found["shard"], found["position"] = self.shard, np.arange(self.start, self.start + len(self))
        return found


class DocumentDeduplication(Deduplication):
    """Base of the methods that drop whole documents. `reasons[i]` is the reason of decisions with number i."""

    reasons: tuple[str, ...]

    def read_decisions(self, path: Path, shard: int) -> Mapping[int, tuple[str, str]]:
        """Return the reason and the identifier of the document kept, by position."""
        table = read_shard(path, shard, ("position", "reason", "kept"))
        columns = (table.column(name).to_pylist() for name in ("position", "reason", "kept"))
        return {position: (self.reasons[reason], kept) for position, reason, kept in zip(*columns, strict=True)}

    def touched(self, batch: pa.RecordBatch, first: int, decisions: Any) -> Sequence[int]:
        return rows_with(decisions, first, batch.num_rows)

    def apply(self, document: WebDocument, position: int, decisions: Any) -> WebDocument | Dropped:
        if position not in decisions:
            return document
        reason, kept = decisions[position]
        return Dropped(reason=reason, detail=f"kept: {kept}", url=document.url)


class DropWriter:
    """Collects drops in any order and writes them in the order of their places. Memory: that of the sort."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._sort = ExternalSort(folder, "drops", DROP, ("shard", "position"), memory_bytes)

    def add_groups(self, blocks: Iterable[Records], reason: int = 0) -> Iterator[Records]:
        """Add all members but the first of each group; yield the members that are dropped.

        `blocks` are in the order of the fields of `MEMBER`; a group may continue in the next block.
        """
        group, kept = (-1, -1), b""
        for block in blocks:
            starts = np.ones(len(block), bool)
            starts[1:] = (np.diff(block["group_high"]) != 0) | (np.diff(block["group_low"]) != 0)
            starts[0] = (int(block["group_high"][0]), int(block["group_low"][0])) != group
            firsts = np.maximum.accumulate(np.where(starts, np.arange(len(block)), -1))
            kept_ids = np.where(firsts >= 0, block["id"][firsts], kept)
            group, kept = (int(block["group_high"][-1]), int(block["group_low"][-1])), bytes(kept_ids[-1])
            dropped = np.zeros(int((~starts).sum()), DROP)
            for name in ("shard", "position"):
                dropped[name] = block[name][~starts]
            dropped["reason"], dropped["kept"] = reason, kept_ids[~starts]
            self._sort.add(dropped)
            yield block[~starts]

    def write(self, out: Path) -> None:
        """Write the decisions as a Parquet file with the columns shard, position, reason, kept."""
        pa = pyarrow()
        schema = pa.schema(
            [("shard", pa.uint32()), ("position", pa.uint64()), ("reason", pa.uint8()), ("kept", pa.string())]
        )
        write_tables(out, schema, (_drop_table(block, schema) for block in self._sort.merged()))


class IdentityColumns:
    """Builds the columns by which a group decides which document it keeps.

    `quality` names the value of the metadata that is larger for better documents; a missing value counts as 0.
    """

    def __init__(self, quality: str) -> None:
        self._quality = quality
        self._ids: list[bytes] = []
        self._qualities: list[float] = []
        self._digests: list[int] = []

    def add(self, document: WebDocument, num_rows: int = 1) -> None:
        """Add the rows of a document."""
        self._ids += [document.id.encode("utf-8", "replace")[:ID_BYTES].ljust(ID_BYTES, b"\0")] * num_rows
        self._qualities += [_quality(document, self._quality)] * num_rows
        self._digests += [hash64(f"{document.id}\0{document.url}\0{document.text}")] * num_rows

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns."""
        pa = pyarrow()
        return {
            "id": pa.array(self._ids, pa.binary(ID_BYTES)),
            "quality": pa.array(self._qualities, pa.float64()),
            "digest": pa.array(self._digests, pa.uint64()),
        }


def rows_with(decisions: Container[int], first: int, count: int) -> list[int]:
    """Return the rows of a batch of `count` documents from position `first` that decisions by position name."""
    return [row for row in range(count) if first + row in decisions]


def hash128(text: str) -> tuple[int, int]:
    """Return a hash of a text as two integers of 64 bits."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def hash64(text: str) -> int:
    """Return a hash of a text as an integer of 64 bits."""
    return hash128(text)[0]


def read_signatures(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Part]:
    """Yield the rows of the files in order.

    Raises:
        SignaturesError: a file is missing, damaged, or lacks a column.
    """
    pa = pyarrow()
    for shard, path in enumerate(paths):
        start = 0
        with _open(path, columns) as file:
            try:
                for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=list(columns), use_threads=False):
                    if batch.num_rows:
                        yield Part(shard, start, batch)
                    start += batch.num_rows
            except (pa.ArrowInvalid, OSError) as error:
                raise SignaturesError(f"{path} is damaged: {error}; remove it and run again") from error


def first_numbers(paths: Sequence[Path]) -> npt.NDArray[np.int64]:
    """Return the number of the first document of each shard in the order of all documents, and the number of documents."""
    counts = [0]
    for path in paths:
        with _open(path, ()) as file:
            counts.append(file.metadata.num_rows)
    return np.cumsum(np.asarray(counts, np.int64))


def disk_array(path: Path, dtype: Any, size: int) -> Records:
    """Return an array of zeros in a file. Its pages are not part of the memory bound, because the system can evict them.

    The file is written in full: a full disk is an error here, where it would end the process later.
    """
    with path.open("wb") as file:
        rest = max(size, 1) * np.dtype(dtype).itemsize
        while rest:
            rest -= file.write(bytes(min(rest, 1 << 20)))
    return np.asarray(np.memmap(path, dtype, "r+", shape=max(size, 1)))


def read_shard(path: Path, shard: int, columns: Sequence[str]) -> pa.Table:
    """Return the decisions on one shard. Only the row groups of the file with this shard are read.

    Raises:
        SignaturesError: the file is missing, damaged, or lacks a column.
    """
    pa = pyarrow()
    with _open(path, ("shard", *columns)) as file:
        try:
            place = file.schema_arrow.names.index("shard")
            ranges = [file.metadata.row_group(group).column(place).statistics for group in range(file.num_row_groups)]
            groups = [group for group, each in enumerate(ranges) if each is None or each.min <= shard <= each.max]
            table = file.read_row_groups(groups, columns=["shard", *columns], use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise SignaturesError(f"{path} is damaged: {error}; remove it and run again") from error
    return table.filter(pa.array(table.column("shard").to_numpy() == shard))


def write_tables(out: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write tables as the row groups of one Parquet file, atomically."""
    pyarrow()
    import pyarrow.parquet as pq

    with atomic_file(out) as file, pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=_ROWS_PER_GROUP)


@contextlib.contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside `out` for files that do not fit in memory; remove it at the end.

    Raises:
        OutOfSpaceError: the disk is full.
    """
    folder = out.parent / f".{out.name}.work"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    try:
        with room_for(out):
            folder.mkdir(parents=True)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _open(path: Path, columns: Sequence[str]) -> Any:
    pa = pyarrow()
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise SignaturesError(f"{path} does not exist; run the stage again to compute it") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise SignaturesError(f"{path} is not a whole Parquet file: {error}; remove it and run again") from error
    missing = [name for name in columns if name not in file.schema_arrow.names]
    if missing:
        raise SignaturesError(
            f"{path} has no column '{missing[0]}', so that it is of another method; remove it and run again"
        )
    return file


def _quality(document: WebDocument, name: str) -> float:
    try:
        value = float(document.metadata.get(name, 0))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def _fixed_bytes(column: Any) -> Records:
    return np.frombuffer(column.buffers()[1], f"S{ID_BYTES}")[column.offset : column.offset + len(column)]


def _drop_table(block: Records, schema: Any) -> Any:
    kept = [each.decode("utf-8", "replace") for each in block["kept"].tolist()]
    pa = pyarrow()
    columns = [pa.array(block[name]) for name in ("shard", "position", "reason")]
    return pa.Table.from_arrays([*columns, pa.array(kept, pa.string())], schema=schema)
