"""Letters are linked to lines, on pages that are turned, and in views that see the same letters."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from openafm.models.vision.letters import NUM_CLASSES, SPACE, class_of, usual_width
from openafm.reading.letters import Letter
from openafm.reading.lines import TextLine, lines_of


def letter(char: str, x: float, y: float, unit: int = 1, probability: float = 1.0) -> Letter:
    classes_K = np.zeros(NUM_CLASSES, np.float32)
    classes_K[SPACE if char == " " else class_of(char)] = 1
    return Letter(x=x, y=y, unit=unit, probability=probability, classes_K=classes_K)


def typed(text: str, x: float, y: float, size: float = 20, slope: float = 0.0, unit: int = 1) -> list[Letter]:
    """Return the letters of a line that begins at x and y."""
    letters, start = [], x
    for char in text:
        width = 0.52 * size * usual_width(char)
        letters.append(letter(char, x + width / 2, y + slope * (x + width / 2 - start), unit))
        x += width
    return letters


def texts(lines: list[TextLine]) -> list[str]:
    return [line.text for line in sorted(lines, key=lambda line: line.y)]


@pytest.mark.parametrize("slope", [-0.3, -0.1, 0.0, 0.1, 0.3])
def test_lines_of_a_turned_page(slope: float):
    """The page is turned about its corner: lines are parallel, and their beginnings shifted."""
    lines = ["with kind support of Labs", "HARBOR JAZZ NIGHT", "The Old Mill, 44 Atkinson Court", "12.1.2027"]
    letters = []
    for number, text in enumerate(lines):
        y = 200 + 34 * number
        letters += typed(text, 100 - slope * 34 * number, y, slope=slope)
    found = lines_of([letters])
    assert texts(found) == lines
    assert all(14 < line.font_size < 26 for line in found)


@pytest.mark.parametrize("slope", [-0.25, 0.0, 0.25])
def test_a_turned_page_is_set_upright(slope: float):
    """Two parts of a row are far from each other, and as high as each other in the end."""
    letters = []
    for number, (key, value) in enumerate(
        (("Place:", "Oakland Library"), ("Starts at:", "18:15 sharp"), ("Day:", "January 11"))
    ):
        x, y = 150 - slope * 40 * number, 300 + 40 * number
        letters += typed(key, x, y, slope=slope) + typed(value, x + 400, y + slope * 400, slope=slope)
    places = {line.text: line.y for line in lines_of([letters])}
    assert places["Place:"] == pytest.approx(places["Oakland Library"], abs=5)
    assert places["Day:"] == pytest.approx(places["January 11"], abs=5)
    assert places["Day:"] - places["Place:"] > 50


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_perspective_gives_each_line_its_own_slope(scale: float):
    """The number of pixels of the page does not matter."""
    letters = []
    for number in range(8):
        letters += typed(f"line number {number} of eight", 120, 100 + 60 * number, slope=-0.12 + 0.03 * number)
    letters = [replace(each, x=each.x * scale, y=each.y * scale, unit=scale) for each in letters]
    assert texts(lines_of([letters])) == [f"line number {number} of eight" for number in range(8)]


def test_letters_may_lie_in_the_row_of_cells_above_or_below():
    letters = typed("Registration closes", 50, 100)
    shaken = [
        letter(each.character, each.x, each.y + random.Random(index).choice((-4, 4))) for index, each in enumerate(letters)
    ]
    assert texts(lines_of([shaken])) == ["Registration closes"]


def test_narrow_lines_do_not_mix():
    letters = typed("first line of small text", 50, 100, size=12) + typed("second line of small text", 50, 115, size=12)
    assert texts(lines_of([letters])) == ["first line of small text", "second line of small text"]


def test_words_far_apart_are_two_lines():
    letters = typed("Place", 50, 100) + typed("Oakland", 50 + 5 * 12 + 40, 100)
    assert sorted(texts(lines_of([letters]))) == ["Oakland", "Place"]


def test_a_letter_that_is_found_twice_counts_once():
    letters = typed("with the kind support", 50, 100)
    twice = [
        replace(letters[0], x=letters[0].x + 4, probability=0.7),
        replace(letters[3], x=letters[3].x + 3, probability=0.6),
    ]
    assert texts(lines_of([[*letters, *twice]])) == ["with the kind support"]
    assert texts(lines_of([typed("all ill bills", 50, 100)])) == ["all ill bills"]


def test_of_two_views_the_one_with_more_letters_counts():
    fine, coarse = typed("Family Fun Day", 50, 100, size=28), typed("Family", 51, 101, size=28, unit=2)
    assert texts(lines_of([fine, coarse])) == ["Family Fun Day"]
    fine, coarse = typed("Fam", 50, 100, size=28), typed("Family Fun Day", 51, 101, size=28, unit=2)
    assert texts(lines_of([fine, coarse])) == ["Family Fun Day"]


def test_views_with_different_letters_add_up():
    small, large = typed("presented by Verven", 50, 300, size=16), typed("TITLE", 50, 100, size=44, unit=2)
    found = lines_of([small, large])
    assert texts(found) == ["TITLE", "presented by Verven"]
    assert max(found, key=lambda line: line.font_size).text == "TITLE"


def test_no_letters_and_spaces_alone_give_no_lines():
    assert lines_of([]) == [] == lines_of([[], []])
    assert lines_of([[letter(" ", 10, 10)]]) == []


def test_lone_strokes_are_no_text():
    dashes = [letter("1", 300, 40 + 30 * number) for number in range(6)]
    assert texts(lines_of([[*typed("Day", 50, 100), *dashes]])) == ["Day"]


def test_lone_letters_that_are_unlikely_are_no_text():
    for one, probability in (("x", 0.7), ("|", 1.0)):
        mark = letter(one, 300, 300, probability=probability)
        assert lines_of([[mark]]) == []
        ghost = letter("i", 308, 300, probability=0.05)  # which the spelling leaves out
        assert lines_of([[mark, ghost]]) == []


def test_one_letter_is_a_line():
    (line,) = lines_of([[letter("7", 10, 20)]])
    assert (line.text, line.left, line.right) == ("7", 10, 10)
    assert math.isclose(line.y, 20)
