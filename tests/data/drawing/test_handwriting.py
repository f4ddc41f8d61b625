"""Handwriting-like text: each word's box holds its ink, and words are those of the transcription."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from openafm.core.config import ConfigError
from openafm.data.drawing.fonts import fonts_for
from openafm.data.drawing.handwriting import HandwritingConfig, _Hand, _letters, _word

GENERATOR = HandwritingConfig().build()


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_words_are_drawn_with_exact_boxes(split):
    for seed, language in enumerate(("en", "de")):
        drawn = GENERATOR.draw(random.Random(seed), language, split)
        assert list(GENERATOR.check(drawn)) == []
        assert (drawn.metadata["design"] == "yellow") == (split == "held_out")


def test_wrong_words_and_boxes_are_found():
    drawn = GENERATOR.draw(random.Random(3), "en", "train")
    image = drawn.images[0]
    first = image.regions[0]
    left, top, right, bottom = first.box
    for wrong in (replace(first, box=(left, top, right - 1, bottom)), replace(first, label="other")):
        assert GENERATOR.check(replace(drawn, images=(replace(image, regions=(wrong, *image.regions[1:])),)))
    assert GENERATOR.check(replace(drawn, transcription=drawn.transcription + " more"))


def test_a_letter_is_never_drawn_twice_in_the_same_way():
    even = HandwritingConfig(strength=0.0).build()
    assert even.draw(random.Random(2), "en", "train") != GENERATOR.draw(random.Random(2), "en", "train")
    with pytest.raises(ConfigError, match="strength must be from 0 to 2, got 3"):
        HandwritingConfig(strength=3)


def test_a_mark_is_drawn_with_its_letter():
    assert _letters("❤️e\u0301x.") == ["❤️", "e\u0301", "x", "."]


def test_marks_that_are_wide_alone_do_not_leave_the_drawing():
    hand = _Hand(size=20, slant=0.1, turn=2.0, bend=0.5, rise=0.3, ink="black", line_height=1.6)
    for font in fonts_for("tr"):
        for seed in range(3):
            _word(random.Random(seed), "❤️❤️❤️.", font, 20, hand)
