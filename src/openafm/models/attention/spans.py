"""Spans of positions in the rows of a batch. Imports no tensor library: the loader makes spans, attention reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openafm.core.errors import UsageError


class SpanError(UsageError):
    """Spans do not match the batch, or the embeddings inserted for them."""


class Span(NamedTuple):
    """Positions start..stop-1 of a row of the batch, such as one packed document."""

    row: int
    start: int
    stop: int


def branches_of(documents: Sequence[Span], branches: Sequence[Span]) -> list[list[Span]]:
    """Return the branches of each document. Documents and branches are in row-major order."""
    found: list[list[Span]] = [[] for _ in documents]
    number = 0
    for branch in branches:
        while branch[:2] >= (documents[number].row, documents[number].stop):
            number += 1
        found[number].append(branch)
    return found


class EmbeddingSpan(NamedTuple):
    """Positions start..stop-1 of a row whose token embeddings are replaced, such as by those of an image.

    `digest` names the content, in hex.
    """

    row: int
    start: int
    stop: int
    digest: str

    @property
    def image(self) -> ImageKey:
        """The image in the resolution mode that gives it this number of tokens."""
        return ImageKey(self.digest, self.stop - self.start)


class ImageKey(NamedTuple):
    """An image in one resolution mode: the digest of its bytes, and its number of tokens."""

    digest: str
    num_tokens: int


def check_spans(spans: Sequence[Span | EmbeddingSpan], num_rows: int, row_length: int) -> None:
    """Check that spans lie in the rows of a batch and are disjoint.

    Raises:
        SpanError: a span lies outside of its row or overlaps another.
    """
    stops: dict[int, int] = {}
    for row, start, stop in sorted(span[:3] for span in spans):
        if not (0 <= row < num_rows and 0 <= start < stop <= row_length):
            raise SpanError(
                f"the span {start}..{stop} of row {row} lies outside of the batch of {num_rows} rows of {row_length} tokens"
            )
        if start < stops.get(row, 0):
            raise SpanError(f"the span {start}..{stop} of row {row} overlaps another; spans must be disjoint")
        stops[row] = stop
