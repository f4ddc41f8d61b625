"""Resolution modes of images as data (report 5.1). Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openafm.core.config import Config

Mode = Literal["rapid", "balanced", "high"]
MODES: tuple[Mode, ...] = ("rapid", "balanced", "high")


@dataclass(frozen=True, kw_only=True)
class ImageModeConfig(Config):
    """How an image becomes views and tokens: one view of the whole image, and with `grid` above 1 also grid x grid tiles.

    A view has `side` x `side` pixels and `tokens` tokens.
    """

    name: Mode
    side: int
    tokens: int
    grid: int = 1

    def __post_init__(self) -> None:
        smallest = min(self.side, self.tokens, self.grid)
        self.require(smallest > 0, f"side, tokens and grid must be at least 1, got {smallest}")

    @property
    def num_views(self) -> int:
        """Number of views of an image."""
        return self.grid**2 + 1 if self.grid > 1 else 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens of an image."""
        return self.tokens * self.num_views

    @property
    def needed_side(self) -> int:
        """The shorter side below which decoding an image at a reduced size would lose detail."""
        return 2 * self.side * self.grid
