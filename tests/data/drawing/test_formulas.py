"""Formulas: the LaTeX draws the same pixels again, boxes hold the ink, and splits share no skeletons."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from openafm.core.config import ConfigError
from openafm.data.drawing.formulas import FormulasConfig, skeleton
from openafm.data.synthetic.words import is_held_out

GENERATOR = FormulasConfig().build()


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_formulas_are_drawn_with_correct_truth(split):
    for seed in range(3):
        drawn = GENERATOR.draw(random.Random(seed), "de", split)
        assert list(GENERATOR.check(drawn)) == []
        for region in drawn.images[0].regions:
            assert is_held_out(skeleton(region.label)) == (split == "held_out")


def test_wrong_latex_and_boxes_are_found():
    drawn = GENERATOR.draw(random.Random(1), "en", "train")
    image = drawn.images[0]
    first = image.regions[0]

    def errors(latex):
        regions = (replace(first, label=latex), *image.regions[1:])
        transcription = drawn.transcription.replace(f"$${first.label}$$", f"$${latex}$$")
        return GENERATOR.check(replace(drawn, images=(replace(image, regions=regions),), transcription=transcription))

    assert errors(first.label + "{") == ["'" + (first.label + "{").replace("\\", "\\\\") + "' is not balanced"]
    assert "the transcription draws another image" in errors(first.label + " + 1")
    left, top, right, bottom = first.box
    moved = replace(first, box=(left + 1, top, right + 1, bottom))
    assert GENERATOR.check(replace(drawn, images=(replace(image, regions=(moved, *image.regions[1:])),)))


def test_skeletons_have_no_letters_and_numbers():
    assert skeleton(r"\frac{a}{12} + \alpha_{3}") == skeleton(r"\frac{k}{7} + \beta_{45}") == r"\frac{x}{1} + x_{1}"


def test_wrong_depths_are_errors():
    with pytest.raises(ConfigError, match="depth must be from 1 to 6, got 0"):
        FormulasConfig(depth=0)
