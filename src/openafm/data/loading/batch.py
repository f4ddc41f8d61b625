"""A batch of packed rows, and the protocol of the sources that training reads batches from.

Shape suffixes: B rows of this rank, S tokens of a row.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from openafm.models.attention.spans import EmbeddingSpan, ImageKey, Span
from openafm.models.parallel.row_layout import RowLayoutConfig


class Origin(NamedTuple):
    """Where a document's tokens are stored: positions start..stop-1 of a shard of a source."""

    source: str
    shard: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class RowPart:
    """The place of a batch in longer rows, whose positions several ranks divide.

    Attributes:
        ranges: the positions of this part, one of `count` with as many each.
        row_tokens: tokens of a whole row; `documents` are those of whole rows.
        targets_B: positions of each whole row that count in the loss.
        is_silent: no position of this part counts in the loss; one is in the loss mask, so that the part has an output.
    """

    ranges: tuple[range, ...]
    count: int
    row_tokens: int
    documents: tuple[Span, ...]
    targets_B: npt.NDArray[np.int64]
    is_silent: bool


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of one rank for one step.

    Attributes:
        targets_BS: the next token of the same document, also where a document is split over rows.
        loss_mask_BS: True where the target counts in the loss; False at document ends and in padding.
        documents: disjoint spans in row-major order, without the padding.
        branches: the ends of documents that continue one beginning and do not see each other, such as the answers to one
            prompt; in order, the last positions of each document. Empty if no document has any.
        origins: where each document is stored, in the order of `documents`; empty for computed batches.
        token_fields: further values per token by name, [B, S] each, such as advantages or behavior log-probabilities.
        embedding_spans: positions whose token embeddings are replaced, such as those of an image.
        images: the views of each image of `embedding_spans` (`EmbeddingSpan.image`), uint8 [views, side, side, 3]; views
            share the span's tokens equally, in order.
        row_part: which positions of whole rows the batch holds; None for whole rows.
    """

    tokens_BS: npt.NDArray[np.int64]
    targets_BS: npt.NDArray[np.int64]
    loss_mask_BS: npt.NDArray[np.bool_]
    documents: tuple[Span, ...]
    origins: tuple[Origin, ...] = ()
    token_fields: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    embedding_spans: tuple[EmbeddingSpan, ...] = ()
    images: Mapping[ImageKey, npt.NDArray[np.uint8]] = field(default_factory=dict)
    row_part: RowPart | None = None
    branches: tuple[Span, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.tokens_BS)

    @property
    def num_real_tokens(self) -> int:
        """Tokens that belong to a document."""
        return sum(document.stop - document.start for document in self.documents)

    @property
    def num_targets(self) -> int:
        """Positions that count in the loss."""
        return int(self.loss_mask_BS.sum())

    def rows(self, start: int, stop: int) -> Batch:
        """Return rows start..stop-1 as a batch; bounds beyond the last row give fewer rows, or none."""
        return self.select(np.arange(start, min(stop, self.num_rows)))

    def select(self, rows: npt.NDArray[np.int64]) -> Batch:
        """Return some rows, in ascending order, as a batch."""
        new_rows = {row: new_row for new_row, row in enumerate(rows.tolist())}
        chosen = [index for index, document in enumerate(self.documents) if document.row in new_rows]
        spans = tuple(span._replace(row=new_rows[span.row]) for span in self.embedding_spans if span.row in new_rows)
        return Batch(
            tokens_BS=self.tokens_BS[rows],
            targets_BS=self.targets_BS[rows],
            loss_mask_BS=self.loss_mask_BS[rows],
            documents=tuple(self.documents[i]._replace(row=new_rows[self.documents[i].row]) for i in chosen),
            origins=tuple(self.origins[i] for i in chosen) if self.origins else (),
            token_fields={name: values_BS[rows] for name, values_BS in self.token_fields.items()},
            embedding_spans=spans,
            images={span.image: self.images[span.image] for span in spans if span.image in self.images},
            branches=tuple(span._replace(row=new_rows[span.row]) for span in self.branches if span.row in new_rows),
        )

    def part_of_rows(self, layout: RowLayoutConfig, index: int, count: int) -> Batch:
        """Return part number `index` of `count` parts of the positions of each row, for rows without images and branches.

        A part without targets has one in its mask if the batch has any, and is marked as silent.
        """
        row_tokens = self.tokens_BS.shape[1]
        ranges = layout.ranges(index, count, row_tokens)
        kept_S = np.concatenate([np.arange(one.start, one.stop) for one in ranges])
        loss_mask_BS = self.loss_mask_BS[:, kept_S]
        is_silent = self.num_targets > 0 and not loss_mask_BS.any()
        if is_silent:
            loss_mask_BS = np.zeros_like(loss_mask_BS)
            loss_mask_BS[0, 0] = True
        held = _held(self.documents, ranges)
        return Batch(
            tokens_BS=self.tokens_BS[:, kept_S],
            targets_BS=self.targets_BS[:, kept_S],
            loss_mask_BS=loss_mask_BS,
            documents=tuple(span for span, _ in held),
            origins=tuple(self.origins[place] for _, place in held) if self.origins else (),
            token_fields={name: values_BS[:, kept_S] for name, values_BS in self.token_fields.items()},
            row_part=RowPart(
                ranges=ranges,
                count=count,
                row_tokens=row_tokens,
                documents=self.documents,
                targets_B=self.loss_mask_BS.sum(1),
                is_silent=is_silent,
            ),
        )

    def microbatches(self, num_rows: int | None, max_rows: int = 0) -> list[Batch]:
        """Split into batches of at most `num_rows` rows; None does not split.

        The number of microbatches is that of a batch of `max_rows` rows, so that ranks with fewer rows run as many; the
        surplus ones are empty.
        """
        total = max(self.num_rows, max_rows)
        if num_rows is None or num_rows >= total:
            return [self]
        return [self.rows(start, start + num_rows) for start in range(0, total, num_rows)]


def _held(documents: Sequence[Span], ranges: Sequence[range]) -> list[tuple[Span, int]]:
    """Return the pieces of documents in these positions, by their places there and by their documents' indices."""
    held, offset = [], 0
    for one in ranges:
        for index, span in enumerate(documents):
            if span.start < one.stop and span.stop > one.start:
                start, stop = max(span.start, one.start), min(span.stop, one.stop)
                held.append((Span(span.row, start - one.start + offset, stop - one.start + offset), index))
        offset += len(one)
    return sorted(held)


class BatchSource(Protocol):
    """Supply the batches of a run to one data rank: a loader, a replay buffer, preference pairs."""

    @property
    def digest(self) -> str:
        """Identify the data: sources with equal digests give equal batches. A checkpoint stores it."""
        ...

    @property
    def max_rows(self) -> int:
        """Return the largest number of rows that any rank reads in a step."""
        ...

    @property
    def fails_together(self) -> bool:
        """Return True if all ranks raise when one of them cannot read its batch."""
        ...

    def batches(self, start_step: int) -> Generator[Batch]:
        """Yield this rank's batches from `start_step` on, without end. Closing the generator frees its resources."""
        ...
