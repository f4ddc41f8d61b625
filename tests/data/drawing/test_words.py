"""Pages of words: the transcription is what is drawn, boxes hold their words, and texts cannot be guessed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from openafm.core.config import ConfigError
from openafm.data.drawing.camera import CONDITIONS
from openafm.data.drawing.canvas import Canvas, LeavesCanvasError
from openafm.data.drawing.fonts import FontMissingError
from openafm.data.drawing.words import WordsConfig

words = WordsConfig().build()


@pytest.mark.parametrize("language", ["en", "vi", "zh-Hans", "ko"])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_independent_check_finds_no_error(language, split):
    for seed in range(4):
        try:
            drawn = words.draw(random.Random(seed), language, split)
        except FontMissingError as error:
            pytest.skip(str(error))
        assert list(words.check(drawn)) == []
        assert "".join(drawn.transcription.split()) == "".join(region.label for region in drawn.images[0].regions)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_paragraphs_have_full_lines_in_one_font_and_size(split):
    generator = WordsConfig(side=160, smallest=8, paragraph_share=1.0).build()
    pages = [generator.draw(random.Random(seed), "en", split) for seed in range(30)]
    for drawn in pages[:12]:
        assert list(generator.check(drawn)) == []
        texts = [command for command in drawn.log["commands"] if command["op"] == "text"]
        assert len({(command["font"], command["size"], command["at"][0] > 30) for command in texts}) <= 2
        assert [command["text"] for command in texts] == drawn.transcription.split("\n")
        assert len(drawn.transcription) <= 620
    assert any(set("()[]{}/_-") & set(page.transcription) for page in pages)
    assert any(command["op"] == "line" for page in pages for command in page.log["commands"])
    photographs = {condition.name for condition in CONDITIONS.values() if condition.camera}
    files = [page for page in pages if page.metadata["condition"] not in photographs]
    assert len(files) > len(pages) / 2


def test_check_finds_planted_errors():
    drawn = words.draw(random.Random(2), "en", "train")
    assert words.check(replace(drawn, transcription="Exit here"))
    moved = [dict(word, box=[value + 30 for value in word["box"]]) for word in drawn.log["words"]]
    assert words.check(replace(drawn, log={**drawn.log, "words": moved}))


def test_check_finds_wrong_centers():
    for seed in range(8):  # files and photographs
        drawn = words.draw(random.Random(seed), "en", "train")
        image = drawn.images[0]
        first = next(region for region in image.regions if len(region.label) > 1)
        to_the_right, lower = (tuple((x + right, y + down) for x, y in first.centers) for right, down in ((3, 0), (0, 3)))
        for centers in ((), first.centers[:-1], first.centers[::-1], to_the_right, lower):
            regions = tuple(replace(region, centers=centers) if region is first else region for region in image.regions)
            errors = words.check(replace(drawn, images=(replace(image, regions=regions),)))
            assert len(errors) == 1
            assert repr(first.label) in errors[0]


def test_a_letter_over_the_edge_draws_the_page_again(monkeypatch):
    expected, draw_text, calls = words.draw(random.Random(5), "en", "train"), Canvas.text, []

    def text(canvas, *values, **named):
        calls.append(values)
        if len(calls) == 1:
            raise LeavesCanvasError("leaves the canvas")
        return draw_text(canvas, *values, **named)

    monkeypatch.setattr(Canvas, "text", text)
    drawn = words.draw(random.Random(5), "en", "train")
    assert drawn != expected
    assert list(words.check(drawn)) == []


def test_equal_seeds_draw_equal_bytes():
    first, second = (words.draw(random.Random(3), "en", "held_out") for _ in range(2))
    assert first == second


def test_pages_have_letters_digits_and_lines_in_order():
    drawn = [words.draw(random.Random(seed), "en", "train") for seed in range(40)]
    texts = [page.transcription for page in drawn]
    assert {letter for text in texts for letter in text.lower()} >= set("abcdefghijklmnopqrstuvwxyz0123456789")
    vocabulary = [word.lower() for text in texts for word in text.split()]
    assert len(set(vocabulary)) > 0.8 * len(vocabulary)
    lines = {text.count("\n") for text in texts}
    assert min(lines) == 0
    assert max(lines) >= 6
    for page in drawn:
        placed = [command for command in page.log["commands"] if command["op"] == "text"]
        assert [command["text"] for command in placed] == page.transcription.split("\n")
        assert [command["at"][1] for command in placed] == sorted(command["at"][1] for command in placed)


def test_a_page_keeps_its_limits():
    few = WordsConfig(side=200, most_lines=2).build()
    for seed in range(10):
        drawn = few.draw(random.Random(seed), "en", "train")
        assert drawn.transcription.count("\n") <= 1
        assert drawn.log["commands"][0]["size"] == [200, 200]
    with pytest.raises(ConfigError, match="most_lines"):
        WordsConfig(most_lines=0)
