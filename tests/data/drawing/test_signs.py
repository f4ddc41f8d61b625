"""Signs: the transcription is what is drawn, and boxes hold their words."""

from __future__ import annotations

import dataclasses
import random

import pytest

from openafm.data.drawing.fonts import FontMissingError
from openafm.data.drawing.signs import SignsConfig

signs = SignsConfig().build()


@pytest.mark.parametrize("language", ["en", "tr", "zh-Hans", "ko"])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_independent_check_finds_no_error(language, split):
    for seed in range(2):
        try:
            drawn = signs.draw(random.Random(seed), language, split)
        except FontMissingError as error:
            pytest.skip(str(error))
        assert list(signs.check(drawn)) == []
        assert "".join(drawn.transcription.split()) == "".join(region.label for region in drawn.images[0].regions)


def test_check_finds_planted_errors():
    drawn = signs.draw(random.Random(2), "en", "train")
    assert signs.check(dataclasses.replace(drawn, transcription="Exit here"))
    words = [dict(word, box=[value + 30 for value in word["box"]]) for word in drawn.log["words"]]
    assert signs.check(dataclasses.replace(drawn, log={**drawn.log, "words": words}))


def test_equal_seeds_draw_equal_bytes():
    first, second = (signs.draw(random.Random(3), "en", "held_out") for _ in range(2))
    assert first == second
