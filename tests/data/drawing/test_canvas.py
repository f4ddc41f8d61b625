"""Canvas: each word's box contains exactly its ink, lines fit, and the bytes are fixed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from openafm.data.drawing.canvas import Canvas, text_width
from openafm.data.drawing.fonts import FontMissingError, fonts_for


def ink(canvas, box=None):
    """The box of the pixels that differ from white, within a box."""
    pixels = np.asarray(canvas.image())
    left, top, right, bottom = (int(value) for value in box or (0, 0, canvas.width, canvas.height))
    rows, columns = np.nonzero((pixels[top:bottom, left:right] < 255).any(axis=2))
    return (columns.min() + left, rows.min() + top, columns.max() + left + 1, rows.max() + top + 1)


@pytest.fixture
def font():
    return fonts_for("en", style="sans")[0]


@pytest.mark.parametrize("anchor", ["la", "mm", "rs", "ld"])
def test_boxes_hold_exactly_the_ink(font, anchor):
    canvas = Canvas(600, 200)
    regions = canvas.text(300, 100, "Großer Jazz, gyp", font, 31, anchor=anchor)
    assert [region.label for region in regions] == ["Großer", "Jazz,", "gyp"]
    for region in regions:
        assert ink(canvas, region.box) == region.box
    left, top = min(region.box[0] for region in regions), min(region.box[1] for region in regions)
    right, bottom = max(region.box[2] for region in regions), max(region.box[3] for region in regions)
    assert ink(canvas) == (left, top, right, bottom)


def test_columns():
    try:
        font = fonts_for("ja")[0]
    except FontMissingError:
        pytest.skip("no Japanese fonts installed")
    canvas = Canvas(200, 500)
    (first, second) = canvas.text(100, 10, "夏祭り、 会場", font, 40, anchor="mt", direction="ttb")
    assert ink(canvas, first.box) == first.box
    assert second.box[1] > first.box[3] - 40
    assert first.box[3] - first.box[1] > 2 * (first.box[2] - first.box[0])


def test_text_that_leaves_the_canvas_or_lacks_glyphs_is_refused(font):
    canvas = Canvas(100, 50)
    with pytest.raises(ValueError, match="leaves the canvas"):
        canvas.text(60, 10, "too wide", font, 30)
    with pytest.raises(FontMissingError, match="lacks"):
        canvas.text(0, 0, "会", font, 20)
    assert canvas.regions == []


def test_wrap_keeps_every_word_and_the_width(font):
    canvas = Canvas(10, 10)
    text = "One evening of songs, stories and Donaudampfschifffahrtsgesellschaft for all"
    lines = canvas.wrap(text, font, 20, 150)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(text_width(line, font, 20) <= 150 for line in lines)
    assert len(lines) > 3


def test_wrap_follows_the_rules_of_punctuation():
    try:
        font = fonts_for("ja")[0]
    except FontMissingError:
        pytest.skip("no Japanese fonts installed")
    lines = Canvas(10, 10).wrap("会場は文化会館です。入場は無料、どなたでも「歓迎」です。", font, 20, 165)
    assert all(line[0] not in "。、」" and line[-1] != "「" for line in lines)
    assert "".join(lines) == "会場は文化会館です。入場は無料、どなたでも「歓迎」です。"


def test_fitting_size(font):
    canvas = Canvas(10, 10)
    size = canvas.fitting_size("Summer festival", font, 60, 200)
    assert text_width("Summer festival", font, size) <= 200 < text_width("Summer festival", font, size + 1) + 15


def test_equal_drawings_give_equal_bytes(font):
    def draw():
        canvas = Canvas(300, 100, (250, 240, 230))
        canvas.rectangle((10, 10, 100, 60), fill=(10, 20, 30), radius=8)
        canvas.polygon([(120, 10), (160, 60), (110, 50)], fill=(200, 0, 0))
        canvas.text(10, 62, "The same", font, 20, outline=2)
        return canvas

    first, second = draw(), draw()
    assert first.png() == second.png()
    assert json.dumps(first.commands) == json.dumps(second.commands)
    assert [command["op"] for command in first.commands] == ["canvas", "rectangle", "polygon", "text"]


def test_centers_of_letters_are_in_the_middle_of_their_ink_from_left_to_right(font):
    canvas = Canvas(400, 100)
    (word,) = canvas.text(30, 20, "HMIX", font, 40)
    for letter, (x, y) in zip("HMIX", word.centers, strict=True):
        alone = Canvas(400, 100)
        (ink,) = alone.text(100, 20, letter, font, 40)
        width = ink.box[2] - ink.box[0]
        row = np.asarray(canvas.image().convert("L"))[int(word.box[1]) : int(word.box[3])]
        columns = np.flatnonzero((row < 128).any(0))
        near = columns[np.abs(columns - x) <= width / 2 + 2]
        assert abs((near.min() + near.max() + 1) / 2 - x) <= 3
        assert y == word.centers[0][1]
    assert canvas.text(200, 5, "上下", fonts_for("zh-Hans")[0], 20, direction="ttb")[0].centers == ()


def test_centers_of_a_line_are_at_the_height_of_the_middle_of_its_small_letters(font):
    canvas = Canvas(400, 100)
    words = canvas.text(20, 70, "x gyp 'x", font, 40, anchor="ls")
    assert {y for word in words for _, y in word.centers} == {70 - 0.25 * 40}
    small = words[0].box
    assert abs((small[1] + small[3]) / 2 - 60) <= 3
    assert all(abs((word.box[1] + word.box[3]) / 2 - 60) >= 3 for word in words[1:])
