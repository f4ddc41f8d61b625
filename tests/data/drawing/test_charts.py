"""Charts: every kind is drawn in its languages with truth that the independent check confirms, and wrong truth is found."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal

import pytest

from openafm.core.config import ConfigError
from openafm.data.drawing.charts import ChartsConfig
from openafm.data.drawing.charts.kinds import KINDS
from openafm.data.drawing.charts.styles import HELD_OUT
from openafm.data.drawing.fonts import FontMissingError, fonts_for
from openafm.data.images.documents import Question


def languages():
    """The languages whose fonts are installed."""
    found = []
    for language in ("en", "de", "tr", "vi", "zh-Hans", "zh-Hant", "ja", "ko", "fr", "nb"):
        try:
            fonts_for(language, style="any", split="train")
        except FontMissingError:
            continue
        found.append(language)
    return found


def draw(kind, seed=0, language="en", split="train"):
    generator = ChartsConfig(kinds=(kind,)).build()
    return generator, generator.draw(random.Random(seed), language, split)


QUICK_KINDS = ("grouped_bar", "pie")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK_KINDS else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_every_kind_is_drawn_with_correct_truth(kind):
    known = languages()
    language = known[list(KINDS).index(kind) % len(known)]
    generator, drawn = draw(kind, 3, language)
    assert list(generator.check(drawn)) == []
    assert drawn.metadata["chart"] == kind
    assert {region.kind for region in drawn.images[0].regions} >= {"title", "axis", "label"} - (
        {"label"} if kind in ("pie", "donut") else set()
    )
    assert any(question.kind == "chart.table" for question in drawn.questions)


def test_drawing_is_a_function_of_the_seed():
    first = draw("pie", 5)[1]
    assert first == draw("pie", 5)[1]
    assert first.images != draw("pie", 6)[1].images


def test_held_out_charts_have_designs_and_fonts_of_their_own():
    train, held_out = ([draw("pie", seed, split=split)[1] for seed in range(1)] for split in ("train", "held_out"))
    assert all(drawn.metadata["design"] in HELD_OUT for drawn in held_out)
    assert not any(drawn.metadata["design"] in HELD_OUT for drawn in train)
    assert not {drawn.metadata["font"] for drawn in train} & {drawn.metadata["font"] for drawn in held_out}


def test_the_check_finds_a_wrong_answer_box_value_and_text():
    generator, drawn = draw("bar", 1)
    image = drawn.images[0]
    title = next(region for region in image.regions if region.kind == "title")

    def errors(**changes):
        return list(generator.check(replace(drawn, **changes)))

    def with_region(region):
        regions = tuple(region if each == title else each for each in image.regions)
        return errors(images=(replace(image, regions=regions),))

    left, top, right, bottom = title.box
    assert with_region(replace(title, box=(left + 1, top, right, bottom)))  # cuts ink
    assert with_region(replace(title, box=(left - 1, top, right, bottom)))  # is larger than the ink
    assert with_region(replace(title, label="Other"))
    assert errors(questions=(*drawn.questions, Question(question=drawn.questions[0].question, answer="7", kind="chart.max")))
    cell = drawn.transcription.rpartition(" | ")[2]
    assert errors(transcription=drawn.transcription.removesuffix(cell) + "77 |")
    values = [[str(Decimal(value) * 2 + 1) for value in row] if index == 0 else row
              for index, row in enumerate(drawn.log["table"]["values"])]  # fmt: skip
    assert errors(log=drawn.log | {"table": drawn.log["table"] | {"values": values}})


def test_exact_numbers_are_asked_only_where_they_are_written():
    exact = {"chart.lookup", "chart.sum", "chart.difference"}
    for seed in range(2):
        _, drawn = draw("lollipop", seed)
        asked = {question.kind for question in drawn.questions}
        assert drawn.metadata["values"] == "written" or not asked & exact


def test_unknown_kinds_are_errors():
    with pytest.raises(ConfigError, match="unknown kinds spiral; known: bar"):
        ChartsConfig(kinds=("spiral",))
