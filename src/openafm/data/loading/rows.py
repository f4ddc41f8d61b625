"""Packing documents into rows of equal length by best-fit decreasing, on lengths alone.

Rows with the same remaining space are interchangeable, so documents of one length are placed in runs. The result equals
best-fit decreasing (Johnson, 1973), at a cost that grows with the number of distinct lengths.

Shape suffixes: D documents, P pieces, R rows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DocumentPieces:
    """Documents split into pieces of at most a row: the document of each piece, its start in it, and its length."""

    document_P: Int64Array
    start_P: Int64Array
    length_P: Int64Array


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Row `r` holds the pieces `order_P[row_starts_R1[r] : row_starts_R1[r + 1]]`, `row_starts_R1` being of length R + 1."""

    order_P: Int64Array
    row_starts_R1: Int64Array

    @property
    def num_rows(self) -> int:
        return len(self.row_starts_R1) - 1

    def pieces(self, row: int) -> Int64Array:
        """Return the indices of the pieces of a row, longest first."""
        return self.order_P[self.row_starts_R1[row] : self.row_starts_R1[row + 1]]


def split_documents(
    lengths_D: Int64Array, row_tokens: int, starts: Mapping[int, Sequence[int]] | None = None
) -> DocumentPieces:
    """Split every document into pieces of `row_tokens`; the last one may be shorter.

    `starts` has the starts of the pieces of documents that are split elsewhere (`starts_between`).
    """
    num_pieces_D = -(-lengths_D // row_tokens)
    for document, its_starts in (starts or {}).items():
        num_pieces_D[document] = len(its_starts)
    document_P = np.repeat(np.arange(len(lengths_D)), num_pieces_D)
    first_piece_D = np.cumsum(num_pieces_D) - num_pieces_D
    start_P = (np.arange(len(document_P)) - first_piece_D[document_P]) * row_tokens
    length_P = np.minimum(lengths_D[document_P] - start_P, row_tokens)
    for document, its_starts in (starts or {}).items():
        pieces = slice(first_piece_D[document], first_piece_D[document] + len(its_starts))
        start_P[pieces] = its_starts
        length_P[pieces] = np.diff([*its_starts, lengths_D[document]])
    return DocumentPieces(document_P=document_P, start_P=start_P, length_P=length_P)


def starts_between(length: int, row_tokens: int, solid: Iterable[tuple[int, int]]) -> list[int]:
    """Return the starts of the pieces of a document such that no piece begins inside one of the `solid` spans.

    Spans are disjoint, in order, and not longer than a row.
    """
    starts, spans = [0], list(solid)
    begins = [start for start, _ in spans]
    while length - starts[-1] > row_tokens:
        cut = starts[-1] + row_tokens
        last = bisect_left(begins, cut) - 1  # the last span that begins before the cut
        if last >= 0 and spans[last][1] > cut:
            cut = spans[last][0]
        starts.append(cut)
    return starts


def pack_rows(length_P: Int64Array, row_tokens: int, tie_order_P: Int64Array) -> PackedRows:
    """Pack pieces of the given lengths (1..row_tokens) into rows by best-fit decreasing.

    `tie_order_P` is a permutation of the pieces, the order of those of equal length, so that neighbors in the corpus get
    different rows.
    """
    by_length_P = tie_order_P[np.argsort(-length_P[tie_order_P], kind="stable")]
    lengths, counts = np.unique(length_P, return_counts=True)
    rows = _RowSpaces(row_tokens)
    placed = [rows.place(length, count) for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True)]
    row_of_sorted_P = np.concatenate(placed) if placed else np.zeros(0, dtype=np.int64)
    row_sizes_R = np.bincount(row_of_sorted_P, minlength=rows.num_rows)
    return PackedRows(
        order_P=by_length_P[np.argsort(row_of_sorted_P, kind="stable")],
        row_starts_R1=np.concatenate([[0], np.cumsum(row_sizes_R)]).astype(np.int64),
    )


class _RowSpaces:
    """Open rows by their remaining space, as arrays: no Python object per row."""

    def __init__(self, row_tokens: int) -> None:
        self.num_rows = 0
        self._row_tokens = row_tokens
        self._rows: dict[int, array[int]] = {}
        self._spaces: list[int] = []  # the keys of `_rows`, sorted

    def place(self, length: int, count: int) -> Int64Array:
        """Return the rows of `count` documents of one length, each placed in the fullest row with enough space."""
        placed: list[Int64Array] = []
        while count:
            space = self._tightest(length)
            per_row = space // length  # a row that got one is now the tightest for the next
            num_full, rest = divmod(count, per_row)
            rows = self._take(space, num_full + (rest > 0))
            full, partial = rows[:num_full], rows[num_full:]
            for some, times in ((full, per_row), (partial, rest)):
                placed.append(np.repeat(np.frombuffer(some, dtype=np.int64) if some else np.zeros(0, np.int64), times))
                count -= len(some) * times
                self._put(space - times * length, some)
        return np.concatenate(placed)

    def _tightest(self, length: int) -> int:
        position = bisect_left(self._spaces, length)
        return self._spaces[position] if position < len(self._spaces) else self._row_tokens

    def _take(self, space: int, count: int) -> array[int]:
        if space not in self._rows:
            self.num_rows += count
            return array("q", range(self.num_rows - count, self.num_rows))
        rows = self._rows[space]
        taken = rows[-count:]
        del rows[-count:]
        if not rows:
            del self._rows[space]
            del self._spaces[bisect_left(self._spaces, space)]
        return taken

    def _put(self, space: int, rows: array[int]) -> None:
        if not rows or space == 0:
            return
        if space not in self._rows:
            self._rows[space] = array("q")
            insort(self._spaces, space)
        self._rows[space] += rows
