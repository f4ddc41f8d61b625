"""Views of high mode beside transformers' image processor of LLaVA-NeXT with one 2x2 grid (its Pillow and numpy path).

Three differences are on purpose (`data/images/resolution.py`): the overview is the average of the tiles and not another
resize; images that are not square are resized to a square, where LLaVA-NeXT keeps the aspect ratio and pads; images of more
than twice the grid's side are averaged in boxes first, which is faster.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from openafm.data.images.resolution import image_views
from openafm.models.vision.image_modes import ImageModeConfig

SIDE = 48
HIGH = ImageModeConfig(name="high", side=SIDE, tokens=4, grid=2)


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """Return smooth shapes with noise, so that resampling matters."""
    coarse = np.random.default_rng(height).integers(256, size=(6, 6, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = np.random.default_rng(width).integers(-20, 20, size=smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def llava_next_views(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    side = {"height": SIDE, "width": SIDE}
    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size=side,
        image_grid_pinpoints=[[2 * SIDE, 2 * SIDE]],
        do_normalize=False,
        do_rescale=False,
    )
    views_NCYX = processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    return np.rint(views_NCYX).astype(np.uint8).transpose(0, 2, 3, 1)


@pytest.mark.parametrize("side", [20, 96, 131, 192])
def test_tiles_of_square_images_are_equal(side: int) -> None:
    ours, theirs = image_views(picture(side, side), HIGH), llava_next_views(picture(side, side))
    assert ours.shape == theirs.shape == (5, SIDE, SIDE, 3)
    assert np.array_equal(ours[1:], theirs[1:])
    overview = np.abs(ours[0].astype(int) - theirs[0])
    assert overview.mean() < 6


def test_large_images_are_close() -> None:
    difference = np.abs(image_views(picture(900, 900), HIGH).astype(int) - llava_next_views(picture(900, 900)))
    assert difference.mean() < 1.5


def test_wide_images_fill_their_tiles() -> None:
    pixels = np.full((60, 120, 3), 200, np.uint8)
    ours, theirs = image_views(pixels, HIGH), llava_next_views(pixels)
    assert ours.min() == ours.max() == 200
    assert theirs[1].min() == 0  # padding
    assert theirs[1].max() == 200
