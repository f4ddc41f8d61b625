"""Resolution modes: how many views and tokens an image gets (report 5.1).

`high` is a grid of tiles after an overview, `balanced` the overview alone, `rapid` a small overview with few tokens. A view
is the whole image, or a tile of it, resized to a square without keeping the aspect ratio. So a view has no padding, its
text is as sharp as the side allows, and coordinates in thousandths of the image (`grounding.py`) are thousandths of the
view whatever the aspect ratio.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config
from openafm.core.libraries import needed
from openafm.models.vision.image_modes import MODES as MODES
from openafm.models.vision.image_modes import AspectTilesModeConfig, ImageModeConfig
from openafm.models.vision.image_modes import Mode as Mode

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True)
class ResolutionConfig(Config):
    """Sides of views in pixels and tokens of a view, by mode, and the shares of the modes in training.

    An image counts as high-resolution if it has more pixels than a view of `side`. Rapid mode is drawn for half of the
    other images and for 1 % of these; 20 % of the rest get balanced mode, and what remains high mode (report 5.1).
    """

    side: int = 672
    rapid_side: int = 224
    tokens: int = 144
    rapid_tokens: int = 9
    grid: int = 2
    rapid_share: float = 0.5
    rapid_share_of_high_resolution: float = 0.01
    balanced_share: float = 0.2

    def __post_init__(self) -> None:
        smallest = min(self.side, self.rapid_side, self.tokens, self.rapid_tokens, self.grid)
        self.require(smallest > 0, f"sides, tokens and grid must be at least 1, got {smallest}")
        shares = (self.rapid_share, self.rapid_share_of_high_resolution, self.balanced_share)
        self.require(0 <= min(shares) <= max(shares) <= 1, f"shares are from 0 to 1, got {shares}")

    def mode(self, name: Mode) -> ImageModeConfig:
        """Return the mode of this name, for the config of a model that is trained with it."""
        if name == "rapid":
            return ImageModeConfig(name=name, side=self.rapid_side, tokens=self.rapid_tokens)
        return ImageModeConfig(name=name, side=self.side, tokens=self.tokens, grid=self.grid if name == "high" else 1)

    def num_tokens(self, mode: Mode) -> int:
        """Return the number of tokens of an image."""
        return self.mode(mode).num_tokens

    def needed_side(self, mode: Mode) -> int:
        """Return `ImageModeConfig.needed_side` of a mode."""
        return self.mode(mode).needed_side

    def draw_mode(self, width: int, height: int, rng: random.Random) -> Mode:
        """Return a mode for an image of this size, drawn by the shares."""
        is_high_resolution = width * height > self.side**2
        if rng.random() < (self.rapid_share_of_high_resolution if is_high_resolution else self.rapid_share):
            return "rapid"
        return "balanced" if rng.random() < self.balanced_share else "high"

    def views(self, pixels: npt.NDArray[np.uint8], mode: Mode) -> npt.NDArray[np.uint8]:
        """Return `image_views` of an image in a mode."""
        return image_views(pixels, self.mode(mode))


def image_views(pixels: npt.NDArray[np.uint8], mode: ImageModeConfig) -> npt.NDArray[np.uint8]:
    """Return the views of an image [H, W, 3] as [N, side, side, 3]: the overview, then the tiles row by row.

    With tiles, the overview is the average of their pixels, so it differs slightly from that of a mode without tiles.
    Tiles by the image's shape (`AspectTilesModeConfig`) come before the overview, as in InternVL.
    """
    with needed("resizing images", "Pillow", "images"):
        from PIL import Image as Images
    if isinstance(mode, AspectTilesModeConfig):
        return _aspect_tiles(Images.fromarray(pixels), mode)
    image, side, grid = Images.fromarray(pixels), mode.side, mode.grid
    if mode.num_views == 1:
        return np.asarray(_resized(image, side))[None]
    whole = _resized(image, side * grid)
    views = np.empty((mode.num_views, side, side, 3), np.uint8)
    views[0] = np.asarray(whole.reduce(grid))  # a third faster than to resize the image again
    tiles = np.asarray(whole).reshape(grid, side, grid, side, 3).swapaxes(1, 2)
    views[1:].reshape(grid, grid, side, side, 3)[:] = tiles
    return views


def _resized(image: Image, side: int) -> Image:
    """Return the image as a square. Images of more than twice the side are first averaged in boxes, which is faster."""
    from PIL.Image import Resampling

    return image.resize((side, side), Resampling.BICUBIC, reducing_gap=2.0)


def _aspect_tiles(image: Image, mode: AspectTilesModeConfig) -> npt.NDArray[np.uint8]:
    from PIL.Image import Resampling

    (columns, rows), side = mode.grid_of(*image.size), mode.side
    overview = np.asarray(image.resize((side, side), Resampling.BICUBIC))[None]
    if columns * rows == 1:
        return overview
    whole = np.asarray(image.resize((columns * side, rows * side), Resampling.BICUBIC))
    tiles = whole.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
    return np.concatenate((tiles, overview))
