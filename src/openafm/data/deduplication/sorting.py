"""Sort more records than fit in memory: sorted runs in files, merged block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[Any]
"""A one-dimensional array with named fields."""

COPIES = 6
"""The memory of a sort divided by that of its records: the records, the order, keys while they are compared, the result."""
MIN_BLOCK = 256


class ExternalSort:
    """Records with named fields, sorted by some of these fields.

    With records of R bytes and a budget of M bytes, a run has M / (6 R) records, and memory stays below
    max(M, 6 x 256 x R x number of runs). Disk: R bytes for each record.
    """

    def __init__(self, folder: Path, name: str, dtype: Any, fields: Sequence[str], memory_bytes: int) -> None:
        self._path, self._dtype, self._fields = folder / f"{name}.runs", np.dtype(dtype), tuple(fields)
        self._run = max(memory_bytes // (COPIES * self._dtype.itemsize), MIN_BLOCK)
        self._pending: list[Records] = []
        self._num_pending = 0
        self._lengths: list[int] = []
        self._path.unlink(missing_ok=True)

    def add(self, records: Records) -> None:
        """Add records."""
        while len(records):
            part = records[: self._run - self._num_pending]
            self._pending.append(part.copy())
            self._num_pending += len(part)
            records = records[len(part) :]
            if self._num_pending == self._run:
                self._write_run()

    def merged(self) -> Iterator[Records]:
        """Yield all records in order, in blocks that are not empty. The files are removed at the end."""
        if not self._lengths:
            if self._num_pending:
                yield self._sorted_pending()
            return
        if self._num_pending:
            self._write_run()
        with self._path.open("rb") as file:
            yield from self._merge(file)
        self._path.unlink()

    def _merge(self, file: Any) -> Iterator[Records]:
        block = max(self._run // len(self._lengths), MIN_BLOCK)
        size = self._dtype.itemsize
        ends = np.cumsum(self._lengths)
        places = [int(end) - length for end, length in zip(ends, self._lengths, strict=True)]
        heads: list[Records] = [np.empty(0, self._dtype) for _ in places]
        while True:
            for run, head in enumerate(heads):
                count = min(block, int(ends[run]) - places[run]) if len(head) == 0 else 0
                if count:
                    file.seek(places[run] * size)
                    heads[run] = np.frombuffer(file.read(count * size), self._dtype)
                    places[run] += count
            open_runs = [run for run, head in enumerate(heads) if len(head)]
            if not open_runs:
                return
            # Records up to the smallest of the last records are complete: later blocks hold none before it.
            unfinished = [run for run in open_runs if places[run] < ends[run]]
            limit = min((self._key(heads[run][-1]) for run in unfinished), default=None)
            parts = []
            for run in open_runs:
                count = len(heads[run]) if limit is None else self._count_up_to(heads[run], limit)
                parts.append(heads[run][:count])
                heads[run] = heads[run][count:]
            yield self._sort(np.concatenate(parts))

    def _count_up_to(self, records: Records, limit: tuple[Any, ...]) -> int:
        """Return the number of sorted records with keys up to `limit`, by binary search."""
        low, high = 0, len(records)
        while low < high:
            middle = (low + high) // 2
            if self._key(records[middle]) <= limit:
                low = middle + 1
            else:
                high = middle
        return low

    def _key(self, record: Any) -> tuple[Any, ...]:
        return tuple(record[name].item() for name in self._fields)

    def _sort(self, records: Records) -> Records:
        return records[np.lexsort([records[name] for name in reversed(self._fields)])]

    def _sorted_pending(self) -> Records:
        records = self._sort(np.concatenate(self._pending))
        self._pending, self._num_pending = [], 0
        return records

    def _write_run(self) -> None:
        records = self._sorted_pending()
        with self._path.open("ab") as file:
            file.write(records.view(np.uint8).data)
        self._lengths.append(len(records))
