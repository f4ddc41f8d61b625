"""Base of the position embeddings. Imports no tensor library, so that a kind of one file does not either."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class PositionEmbedding(ABC):
    """The position embedding of one batch, built once per forward pass and shared by all layers."""

    @abstractmethod
    def apply(self, x_BSHC: Tensor) -> Tensor:
        """Return queries or keys with their positions encoded, in the dtype of the input."""
