"""Regular expressions without backtracking: the same matches as Python's `re`, in bounded time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import openafm as fm
from openafm.framework.schema.linear_regex import LinearRegex, WorkBudget

ATOMS = [*"ab.", r"\d", r"\w", r"\s", r"\S", "[^a]", "[a-c]", r"[^\d]", "^", "$", r"\b", r"\B", "\n"]
COUNTS = ["*", "+", "?", "{2}", "{1,3}", "{,2}", "*?"]
REGEXES = st.recursive(
    st.sampled_from(ATOMS),
    lambda below: (
        st.tuples(below, below).map("".join)
        | st.tuples(below, below).map(lambda pair: f"(?:{'|'.join(pair)})")
        | st.tuples(below, st.sampled_from(COUNTS)).map(lambda pair: f"({pair[0]}){pair[1]}")
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(REGEXES, st.text("abc1_ \n-é", max_size=5))
def test_matches_like_python(pattern: str, text: str) -> None:
    assume(text or r"\B" not in pattern)  # Python before 3.14 finds no \B in empty text
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII)  # Python's $ also matches before a final newline
    linear = LinearRegex(pattern)
    assert linear.fullmatch(text) == (expected.fullmatch(text) is not None)
    assert linear.search(text) == (expected.search(text) is not None)


@pytest.mark.parametrize("pattern", [r"(\w+\s?)+", r"(a|a)*b", r"(.*)*x", r"(a?){25}a{25}"])
def test_patterns_with_exponential_backtracking_take_linear_time(pattern: str) -> None:
    started = time.process_time()
    assert not LinearRegex(pattern).fullmatch("a" * 20_000 + "!")
    assert time.process_time() - started < 5


def test_the_budget_limits_the_work() -> None:
    with pytest.raises(fm.DecodingFailureError, match="takes more than 10,000 steps"):
        LinearRegex("(.{0,500}x){3}").search("ab" * 500, WorkBudget(10_000))


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "a(?=b)", "(?i)a", "a++", "(((a{1,99}){1,99}){1,99}){1,99}", "a{99999}"])
def test_unsupported_patterns_raise(pattern: str) -> None:
    with pytest.raises(fm.UnsupportedGuideError, match="regex="):
        LinearRegex(pattern)


def test_repeated_empty_groups_take_no_time() -> None:
    assert LinearRegex("(){1,4000000000}(a{0}){99999}").fullmatch("")
