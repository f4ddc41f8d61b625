"""Resolution modes: tokens, views and their shares."""

import random
from collections import Counter

import numpy as np

from openafm.data.images.resolution import MODES, ResolutionConfig

SMALL = ResolutionConfig(side=32, rapid_side=16, tokens=4, rapid_tokens=1)


def test_tokens_and_views_are_those_of_the_report() -> None:
    config = ResolutionConfig()
    assert [config.num_tokens(mode) for mode in MODES] == [9, 144, 720]
    assert [config.mode(mode).num_views for mode in MODES] == [1, 1, 5]
    assert [config.mode(mode).side for mode in MODES] == [224, 672, 672]


def test_views_are_the_overview_and_the_tiles() -> None:
    quarters = np.zeros((100, 60, 3), np.uint8)
    quarters[:50, 30:], quarters[50:, :30], quarters[50:, 30:] = 80, 160, 240
    assert SMALL.views(quarters, "rapid").shape == (1, 16, 16, 3)
    assert SMALL.views(quarters, "balanced").shape == (1, 32, 32, 3)
    high = SMALL.views(quarters, "high")
    assert high.shape == (5, 32, 32, 3)
    assert np.abs(high[0].astype(int) - SMALL.views(quarters, "balanced")[0]).mean() < 4
    assert [int(tile[16, 16, 0]) for tile in high[1:]] == [0, 80, 160, 240]


def test_modes_are_drawn_by_the_shares() -> None:
    config, rng = ResolutionConfig(), random.Random(0)
    small = Counter(config.draw_mode(600, 600, rng) for _ in range(4000))
    large = Counter(config.draw_mode(1344, 1344, rng) for _ in range(4000))
    assert abs(small["rapid"] / 4000 - 0.5) < 0.03
    assert abs(small["balanced"] / 4000 - 0.1) < 0.02
    assert 10 < large["rapid"] < 80
    assert abs(large["balanced"] / 4000 - 0.198) < 0.03
