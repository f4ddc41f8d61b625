"""Attention masks as data: which positions of its document a query sees. Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


class Mask(ABC):
    """Base of the masks. A layer has one mask; attention contexts apply it to each document separately."""

    @abstractmethod
    def num_pairs(self, length: int) -> int:
        """Return how many pairs of a query and a visible key a document of `length` positions has."""


@dataclass(frozen=True)
class CausalMask(Mask):
    """Position q sees positions q - window + 1 to q; without a window 0 to q."""

    window: int | None = None

    def num_pairs(self, length: int) -> int:
        return _causal_pairs(length, self.window)


@dataclass(frozen=True)
class BidirectionalMask(Mask):
    """Every position sees every position, as in an encoder."""

    def num_pairs(self, length: int) -> int:
        return length * length


@dataclass(frozen=True)
class PrefixMask(Mask):
    """Causal within the window, and the positions of one span (such as the patches of an image) also see each other.

    The spans are a property of the batch: the attention context holds them.
    """

    window: int | None = None

    def num_pairs(self, length: int) -> int:
        """Return the causal pairs; those that spans add are not counted."""
        return _causal_pairs(length, self.window)


def _causal_pairs(length: int, window: int | None) -> int:
    seen = length if window is None else min(length, window)
    return seen * (seen + 1) // 2 + (length - seen) * seen
