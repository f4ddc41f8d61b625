"""Resolution modes by the number of tokens of an image."""

from __future__ import annotations

import pytest

from openafm.core.config import ConfigError
from openafm.models.vision.image_modes import AspectTilesModeConfig, ImageModeConfig, modes_by_tokens

BALANCED = ImageModeConfig(name="balanced", side=16, tokens=4)
HIGH = AspectTilesModeConfig(name="high", side=16, tokens=4, most_tiles=3)


@pytest.mark.parametrize("modes", [(BALANCED, HIGH), (HIGH, BALANCED)])
def test_a_number_of_tokens_has_the_mode_with_no_other_number(modes: tuple[ImageModeConfig, ...]) -> None:
    assert modes_by_tokens(modes) == {4: BALANCED, 12: HIGH, 16: HIGH}


def test_tiles_that_exceed_any_image_are_refused() -> None:
    assert AspectTilesModeConfig(name="high", side=1024, tokens=4, most_tiles=64).num_views == 65
    with pytest.raises(ConfigError, match="64 tiles of 1025 pixels exceed"):
        AspectTilesModeConfig(name="high", side=1025, tokens=4, most_tiles=64)
