"""Which positions of rows each rank of context parallelism computes, as data. Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from openafm.core.config import Config


@dataclass(frozen=True, kw_only=True)
class RowLayoutConfig(Config, ABC):
    """Base of the layouts. The positions of a row are equal chunks, in order; every rank computes as many of them."""

    @abstractmethod
    def chunks(self, rank: int, count: int) -> tuple[int, ...]:
        """Return the ascending numbers of the chunks of one of `count` ranks."""

    def num_chunks(self, count: int) -> int:
        """Return into how many chunks `count` ranks divide a row."""
        return count * len(self.chunks(0, count))

    def ranges(self, rank: int, count: int, row_tokens: int) -> tuple[range, ...]:
        """Return the positions of the chunks of a rank."""
        length = row_tokens // self.num_chunks(count)
        return tuple(range(chunk * length, (chunk + 1) * length) for chunk in self.chunks(rank, count))


@dataclass(frozen=True, kw_only=True)
class ConsecutiveLayout(RowLayoutConfig):
    """One chunk for each rank. In a document as long as the row, the last rank attends to the most keys."""

    def chunks(self, rank: int, count: int) -> tuple[int, ...]:
        return (rank,)


@dataclass(frozen=True, kw_only=True)
class BalancedLayout(RowLayoutConfig):
    """Two chunks for each rank, as far from the beginning as from the end: equal causal work in long documents.

    Layers with windows exchange the ends of two chunks instead of one.
    """

    def chunks(self, rank: int, count: int) -> tuple[int, ...]:
        return rank, 2 * count - 1 - rank
