"""Edits between texts, against the recursive definition."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openafm.core.edit_distance import edits


@functools.cache
def defined(one: str, other: str) -> int:
    if not one or not other:
        return len(one) + len(other)
    replaced = defined(one[1:], other[1:]) + (one[0] != other[0])
    return min(replaced, defined(one[1:], other) + 1, defined(one, other[1:]) + 1)


@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_edits_are_those_of_the_definition(one: str, other: str) -> None:
    assert edits(one, other) == defined(one, other) == edits(other, one)


@pytest.mark.parametrize(("one", "other", "expected"), [("", "", 0), ("", "day", 3), ("Doy", "Day", 1), ("Mi1", "Mill", 2)])
def test_edits_of_readings(one: str, other: str, expected: int) -> None:
    assert edits(one, other) == expected
