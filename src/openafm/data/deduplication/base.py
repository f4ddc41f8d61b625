"""The interface of deduplication: map shards to signatures, reduce these to decisions, apply the decisions to shards.

The three functions are pure. Results depend on the documents and on the order of the shards, which is that of their content,
and never on the number of workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from openafm.core.config import Config
from openafm.data.web.documents import Dropped, WebDocument

if TYPE_CHECKING:
    import pyarrow as pa


class Deduplication(ABC):
    """Finds documents, or parts of documents, that occur more than once."""

    @abstractmethod
    def signatures(self, documents: Iterable[WebDocument]) -> pa.Table:
        """Return what `decide` needs of the documents of one shard. The schema is the same for every shard."""

    @abstractmethod
    def decide(self, signatures: Sequence[Path], out: Path) -> None:
        """Read the Parquet files of all shards in order and write the decisions as one Parquet file to `out`.

        Memory is bounded, independent of the number of documents; the docstring of each method states the bound.
        """

    @abstractmethod
    def read_decisions(self, path: Path, shard: int) -> Any:
        """Return the decisions on the shard of this index in the form that `apply` reads."""

    @abstractmethod
    def apply(self, document: WebDocument, position: int, decisions: Any) -> WebDocument | Dropped:
        """Return the document at a position of the shard, a copy without repeated parts, or the reason for a drop."""


@dataclass(frozen=True, kw_only=True)
class DeduplicationConfig(Config, ABC):
    """Base of the methods of deduplication. `REASONS` lists every reason for a drop.

    `VERSION` is part of the key of cached results: increase it when the results of the method change.
    """

    REASONS: ClassVar[tuple[str, ...]] = ()
    VERSION: ClassVar[int] = 1

    @abstractmethod
    def build(self) -> Deduplication:
        """Return the method."""
