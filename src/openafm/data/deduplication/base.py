"""The interface of deduplication: map shards to signatures, reduce these to decisions, apply the decisions to shards.

The functions are pure. A document is identified by its place: the index of its shard and its position there. Identifiers
need not be unique: one page that was fetched twice has the same identifier twice, and exactly one copy is kept.

Which texts are kept does not depend on the order of documents, on their division into shards, or on the number of workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError
from openafm.data.web.documents import Dropped, WebDocument

if TYPE_CHECKING:
    import pyarrow as pa


class SignaturesError(OpenAFMError):
    """Signatures or decisions are missing, damaged, or of another method."""


class Reduction(ABC):
    """Decides over what all shards say, and applies the decisions to each shard."""

    @abstractmethod
    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        """Read the Parquet files of all shards in order and write the decisions as one Parquet file to `out`.

        `signatures[i]` belongs to shard i. Working files are below the folder of `out` and are removed at the end. Memory is
        bounded, independent of the number of documents; each config states the bound.

        Raises:
            SignaturesError: a file is missing, damaged, or of another method; `out` is not written.
            OutOfSpaceError: the disk is full; `out` is not written.
        """

    @abstractmethod
    def read_decisions(self, path: Path, shard: int) -> Any:
        """Return the decisions on the shard of this index in the form that `apply` reads."""

    @abstractmethod
    def apply(self, document: WebDocument, position: int, decisions: Any) -> WebDocument | Dropped:
        """Return the document at a position of the shard, a copy without repeated parts, or the reason for a drop."""

    def touched(self, batch: pa.RecordBatch, first: int, decisions: Any) -> Sequence[int]:
        """Return the rows that `apply` may change or drop, in order; all others are copied without a look at them.

        Row 0 of the batch has the position `first` in the shard.
        """
        return range(batch.num_rows)


class Deduplication(Reduction):
    """Finds documents, or parts of documents, that occur more than once."""

    @abstractmethod
    def signatures(self, documents: Iterable[WebDocument]) -> pa.Table:
        """Return what `decide` needs of the documents of one shard. The schema is the same for every shard."""


@dataclass(frozen=True, kw_only=True)
class DeduplicationConfig(Config, ABC):
    """Base of the methods of deduplication. `REASONS` lists every reason for a drop.

    `VERSION` is part of the key of cached results: increase it when the results of the method change.
    """

    REASONS: ClassVar[tuple[str, ...]] = ()
    VERSION: ClassVar[int] = 1

    def input_digests(self) -> tuple[str, ...]:
        """Return the digests of the files that the method reads; they are part of the key of cached results."""
        return ()

    @abstractmethod
    def build(self) -> Deduplication:
        """Return the method."""
