"""Lines are put in reading order."""

from __future__ import annotations

import random

import pytest

from openafm.reading.lines import TextLine
from openafm.reading.order import in_reading_order


def line(text: str, left: float, y: float, font_size: float = 20) -> TextLine:
    return TextLine(
        text=text, left=left, right=left + 0.5 * font_size * len(text), y=y, font_size=font_size, probability=1.0
    )


def ordered(*lines: TextLine) -> list[str]:
    """Return the texts in reading order, which the order of the lines must not change."""
    found = {
        tuple(each.text for each in in_reading_order(random.Random(seed).sample(lines, len(lines)))) for seed in range(5)
    }
    assert len(found) == 1
    return list(found.pop())


def test_one_column_is_read_from_top_to_bottom():
    assert ordered(line("third", 40, 150), line("first", 50, 100), line("second", 45, 125)) == ["first", "second", "third"]


def test_columns_are_read_one_after_the_other():
    left = [line("Rain or shine", 40, 100), line("Registration closes: 13", 40, 125), line("March 2033", 40, 150)]
    right = [line("The Old Mill, 5 N", 400, 100), line("Harper Ave", 400, 125)]
    assert ordered(*left, *right) == [each.text for each in (*left, *right)]


def test_a_table_is_read_row_by_row():
    keys = [line("Place:", 40, 100), line("Day:", 40, 130), line("Starts at:", 40, 160)]
    values = [line("Oakland Library", 250, 101), line("January 11", 250, 129), line("18:15", 250, 160)]
    assert ordered(*keys, *values) == ["Place:", "Oakland Library", "Day:", "January 11", "Starts at:", "18:15"]


def test_parts_of_a_line_are_joined():
    assert ordered(line("Food", 40, 100), line("Ganond", 88, 103), line("by", 400, 100)) == ["Food Ganond", "by"]


def test_another_font_begins_a_block():
    title = [line("HARBOR", 40, 100, 60), line("NIGHT", 40, 170, 60)]
    small = [line("presented by", 40, 215, 16), line("Verven", 40, 235, 16)]
    beside = line("Day", 500, 190, 20)
    assert ordered(*title, *small, beside) == ["HARBOR", "NIGHT", "Day", "presented by", "Verven"]


@pytest.mark.parametrize("count", [0, 1])
def test_few_lines(count: int):
    assert in_reading_order([line("one", 0, 0)] * count) == [line("one", 0, 0)] * count
