"""Cells of a view are merged to letters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.models.vision.letters import CELL, NO_LETTER, NUM_CLASSES, OTHER, SPACE, class_of
from openafm.reading import letters
from openafm.reading.letters import LEAST_LETTER, letters_of_view

PAGE = 12 * CELL[1], 8 * CELL[0]


def view(cells: dict[tuple[int, int], dict[str | int, float]], rows: int = 8, columns: int = 12) -> np.ndarray:
    """Return probabilities of a view: those of some cells, by letter or class; all others have no letter."""
    probabilities_RCK = np.zeros((rows, columns, NUM_CLASSES), np.float32)
    for (row, column), shares in cells.items():
        for letter, share in shares.items():
            probabilities_RCK[row, column, letter if isinstance(letter, int) else class_of(letter)] = share
    probabilities_RCK[..., NO_LETTER] = 1 - probabilities_RCK.sum(-1)
    return probabilities_RCK


def test_a_letter_is_in_the_middle_of_its_cell():
    page = 12 * CELL[1] * 2, 8 * CELL[0] * 2
    (letter,) = letters_of_view(view({(2, 5): {"k": 0.9}}), page)
    assert (letter.character, letter.unit) == ("k", 2)
    assert (letter.x, letter.y) == pytest.approx((2 * 5.5 * CELL[1], 2 * 2.5 * CELL[0]))
    assert letter.probability == pytest.approx(0.9)


def test_cells_that_share_a_letter_become_one():
    (letter,) = letters_of_view(view({(2, 5): {"k": 0.45}, (2, 6): {"k": 0.3}, (3, 5): {"k": 0.25}}), PAGE)
    assert letter.character == "k"
    assert letter.probability == pytest.approx(1.0)
    assert letter.x == pytest.approx(CELL[1] * (5.5 * 0.7 + 6.5 * 0.3))
    assert letter.y == pytest.approx(CELL[0] * (2.5 * 0.75 + 3.5 * 0.25))


def test_neighbors_that_are_sure_stay_two_letters():
    found = letters_of_view(view({(2, 5): {"l": 0.95}, (2, 6): {"l": 0.9}}), PAGE)
    assert [letter.character for letter in found] == ["l", "l"]
    assert found[0].x < found[1].x


def test_a_cell_takes_first_from_the_neighbor_with_the_same_letter():
    cells = {(2, 5): {"a": 0.6}, (2, 4): {"b": 0.6}, (2, 6): {"a": 0.4}}
    assert sorted(letter.character for letter in letters_of_view(view(cells), PAGE)) == ["a", "b"]


def test_a_sixth_of_a_letter_is_none():
    assert letters_of_view(view({(2, 5): {"a": 0.11}, (2, 6): {"a": 0.03}}), PAGE) == []
    assert len(letters_of_view(view({(2, 5): {"a": 0.11}, (2, 6): {"a": 0.05}}), PAGE)) == 1


def test_classes_without_a_character():
    found = letters_of_view(view({(1, 1): {SPACE: 1.0}, (1, 5): {OTHER: 1.0}, (1, 9): {"~": 1.0}}), PAGE)
    assert [letter.character for letter in sorted(found, key=lambda letter: letter.x)] == [" ", "?", "~"]


CELLS = st.dictionaries(st.tuples(st.integers(0, 7), st.integers(0, 11)), st.floats(0.01, 1.0), max_size=30)


@given(CELLS)
def test_no_probability_counts_twice(masses: dict[tuple[int, int], float]):
    found = letters_of_view(view({place: {"e": mass} for place, mass in masses.items()}), PAGE)
    assert sum(letter.probability for letter in found) <= sum(masses.values()) + 1e-4
    assert all(LEAST_LETTER - 1e-4 <= letter.probability <= 1 for letter in found)
    assert all(letter.classes_K.sum() == pytest.approx(1, abs=1e-4) for letter in found)
    assert all(0 < letter.x < 12 * CELL[1] and 0 < letter.y < 8 * CELL[0] for letter in found)


def test_a_view_of_noise_has_the_surest_letters_alone(monkeypatch):
    monkeypatch.setattr(letters, "MOST_LETTERS", 3)
    cells = {(row, column): {"x": 0.6 + 0.01 * row} for row in range(0, 8, 2) for column in range(0, 12, 3)}
    found = letters_of_view(view(cells), PAGE)
    assert [round(letter.probability, 2) for letter in found] == [0.66] * 3
