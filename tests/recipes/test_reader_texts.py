"""The texts of which the n-grams of the page reader are counted."""

from __future__ import annotations

import random

from openafm.data.synthetic.announcements import draw_announcement
from openafm.recipes.shipping.reader import english_lines


def test_texts_occur_once_and_are_none_of_held_out_flyers() -> None:
    lines = list(english_lines())
    assert len(lines) == len(set(lines)) > 20_000
    assert lines == list(english_lines())
    assert not any("{" in line for line in lines)
    rng, texts = random.Random(7), {line.casefold() for line in lines}
    held_out = [draw_announcement(rng, "en", "held_out") for _ in range(200)]
    assert not {drawn.place.casefold() for drawn in held_out} & texts
    assert sum(drawn.title.casefold() in texts for drawn in held_out) == 0
