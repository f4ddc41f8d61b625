"""Resolution modes of images as data (report 5.1). Imports no tensor library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openafm.core.config import Config

Mode = Literal["rapid", "balanced", "high"]
MODES: tuple[Mode, ...] = ("rapid", "balanced", "high")
_MOST_TILES = 64
_MOST_PIXELS = 1 << 26  # of all tiles; InternVL has 12 tiles of 448 pixels, 2.4 million


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
        """Number of tokens of an image, at most."""
        return self.tokens * self.num_views

    @property
    def token_counts(self) -> frozenset[int]:
        """All numbers of tokens that an image can have."""
        return frozenset((self.num_tokens,))

    def num_tokens_of(self, width: int, height: int) -> int:
        """Return the number of tokens of an image of this size in pixels."""
        return self.num_tokens

    @property
    def needed_side(self) -> int:
        """The shorter side below which decoding an image at a reduced size would lose detail."""
        return 2 * self.side * self.grid


@dataclass(frozen=True, kw_only=True)
class AspectTilesModeConfig(ImageModeConfig):
    """Tiles in the grid that is closest to the image's shape, then an overview; the overview alone if the grid is 1 x 1.

    The rule is InternVL's: `least_tiles` to `most_tiles` tiles; of grids that are equally close, the one with more tiles as
    long as they have less than twice the image's pixels. `grid` is not used.
    """

    least_tiles: int = 1
    most_tiles: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.grid == 1, f"grid must be 1, because it follows from the image; got {self.grid}")
        self.require(
            1 <= self.least_tiles <= self.most_tiles <= _MOST_TILES,
            f"tiles are from least_tiles to most_tiles, 1 to {_MOST_TILES}, got {self.least_tiles} to {self.most_tiles}",
        )
        self.require(
            self.most_tiles * self.side**2 <= _MOST_PIXELS,
            f"{self.most_tiles} tiles of {self.side} pixels exceed {_MOST_PIXELS:,} pixels; use fewer or smaller ones",
        )

    @property
    def num_views(self) -> int:
        return max(self._view_counts())

    @property
    def token_counts(self) -> frozenset[int]:
        return frozenset(self.tokens * count for count in self._view_counts())

    @property
    def needed_side(self) -> int:
        return 0  # the whole image decides the grid, and tiles equal those of transformers

    def num_tokens_of(self, width: int, height: int) -> int:
        columns, rows = self.grid_of(width, height)
        return self.tokens * _num_views(columns * rows)

    def grid_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the columns and rows of the tiles of an image of this size in pixels."""
        best, least = (1, 1), math.inf
        for columns, rows in self._grids():
            distance = abs(width / height - columns / rows)
            is_equal_and_larger = distance == least and width * height > 0.5 * self.side**2 * columns * rows
            if distance < least or is_equal_and_larger:
                best, least = (columns, rows), distance
        return best

    def _grids(self) -> list[tuple[int, int]]:
        sides = range(1, self.most_tiles + 1)
        grids = [(columns, rows) for columns in sides for rows in sides]
        allowed = [grid for grid in grids if self.least_tiles <= math.prod(grid) <= self.most_tiles]
        return sorted(allowed, key=math.prod)

    def _view_counts(self) -> set[int]:
        return {_num_views(math.prod(grid)) for grid in self._grids()}


def modes_by_tokens(modes: Sequence[ImageModeConfig]) -> dict[int, ImageModeConfig]:
    """Return the mode of each number of tokens that an image can have.

    Modes with several numbers come first, so that one with a single number keeps it: the views are the same.
    """
    by_counts = sorted(modes, key=lambda mode: len(mode.token_counts), reverse=True)
    return {count: mode for mode in by_counts for count in mode.token_counts}


def _num_views(num_tiles: int) -> int:
    return num_tiles + 1 if num_tiles > 1 else 1
