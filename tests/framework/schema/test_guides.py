"""Guides and options reject invalid values; patterns mean the same in every engine."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import openafm as fm
from openafm.framework.schema.patterns import common_pattern, matches


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"anyOf": "abc"}, "'anyOf' must be a list of strings"),
        ({"anyOf": [1]}, "anyOf"),
        ({"constant": 3}, "'constant' must be a string"),
        ({"count": 0}, "'count' must be a positive integer"),
        ({"count": True}, "count"),
        ({"element": 3}, "'element' must be a GenerationGuide instance"),
        ({"max_items": -1}, "'max_items' must be a non-negative integer"),
        ({"min_items": 1.5}, "min_items"),
        ({"maximum": "x"}, "'maximum' must be a number"),
        ({"minimum": float("nan")}, "minimum"),
        ({"range": [1, 2]}, r"'range' must be a tuple of \(min, max\)"),
        ({"range": (1, 2, 3)}, "range"),
        ({"regex": 5}, "'regex' must be a string"),
    ],
)
def test_guides_reject_values_of_the_wrong_kind(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        fm.guide(**arguments)


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [("pattern", "use regex="), ("ge", "use minimum="), ("maximun", "use maximum="), ("zzz", "known: description, anyOf")],
)
def test_unknown_keywords_name_the_right_one(keyword: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"guide\\(\\) has no keyword '{keyword}'; {hint}"):
        fm.guide(**{keyword: 1})


def test_guides_from_class_methods() -> None:
    assert fm.GenerationGuide.anyOf(["a"]) == fm.GenerationGuide(fm.GuideType.anyOf, ["a"])
    assert fm.GenerationGuide.range((1, 10)).value == (1, 10)
    element = fm.GenerationGuide.element(fm.GenerationGuide.count(2))
    assert (element.guide_type, element.value.guide_type) == (fm.GuideType.element, fm.GuideType.count)
    assert fm.GuideType.anyOf.value == "enum"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fm.SamplingMode.random(top=5, probability_threshold=0.5), "exclude each other"),
        (lambda: fm.SamplingMode.random(top=0), "top.*positive integer"),
        (lambda: fm.SamplingMode.random(top=5.5), "top.*positive integer"),
        (lambda: fm.SamplingMode.random(probability_threshold=1.1), "between 0.0 and 1.0"),
        (lambda: fm.SamplingMode.random(seed="1"), "seed"),
        (lambda: fm.GenerationOptions(temperature=-0.5), "temperature.*non-negative"),
        (lambda: fm.GenerationOptions(temperature="high"), "temperature.*number"),
        (lambda: fm.GenerationOptions(temperature=float("nan")), "temperature"),
        (lambda: fm.GenerationOptions(maximum_response_tokens=0), "maximum_response_tokens.*positive"),
        (lambda: fm.GenerationOptions(maximum_response_tokens=1.5), "maximum_response_tokens.*integer"),
        (lambda: fm.GenerationOptions(sampling="greedy"), "sampling.*SamplingMode"),
    ],
)
def test_options_reject_values_out_of_range(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


def test_options_store_their_arguments() -> None:
    options = fm.GenerationOptions(fm.SamplingMode.random(top=50, seed=4), temperature=0.7, maximum_response_tokens=9)
    assert options.sampling is not None
    assert (options.sampling.mode_type, options.sampling.top, options.sampling.seed) == ("random", 50, 4)
    assert (options.temperature, options.maximum_response_tokens) == (0.7, 9)


@pytest.mark.parametrize(
    ("regex", "pattern"),
    [
        (r"\d{4}-\d{2}", "^[0-9]{4}-[0-9]{2}$"),
        (r"^a$|^b\Z", "^(?:a|b)$"),
        (r"(cat|dog)s?", "^(?:cat|dog)s?$"),
        (r"\W", "^[^0-9A-Z_a-z]$"),
        (r"[a&b~-]", r"^[a\&b\~\-]$"),
        (r"x{,3}?", "^x{0,3}$"),
        (r"(?P<word>ab)+", "^(?:ab)+$"),
        ("", "^$"),
    ],
)
def test_rewritten_patterns(regex: str, pattern: str) -> None:
    assert common_pattern(regex) == pattern


UNENFORCEABLE = [r"(?i)a", r"(?i:a)", r"a(?=b)", r"(?<!a)b", r"(a)\1", r"\bfoo", "a^b", "a$b", "(", "a++", "\ud800"]


@pytest.mark.parametrize("regex", UNENFORCEABLE)
def test_unenforceable_patterns_raise(regex: str) -> None:
    with pytest.raises(fm.UnsupportedGuideError, match="regex="):
        common_pattern(regex)


ATOMS = [*'aB7-_ .é&"', r"\.", r"\n", r"\\", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"]
CLASSES = ["[a-f]", r"[^\d]", r"[\D7]", r"[\s-]", "[^a]", "[]^]", "[a&]"]
COUNTS = ["?", "*", "+", "{2}", "{1,3}", "{,2}", "*?"]
COUNTED = st.tuples(st.sampled_from(ATOMS + CLASSES), st.sampled_from(COUNTS)).map("".join)
ROWS = st.lists(st.sampled_from(ATOMS + CLASSES) | COUNTED, min_size=1, max_size=3).map("".join)
CHOICES = st.lists(ROWS, min_size=1, max_size=3).map(lambda rows: f"({'|'.join(rows)})")
REGEXES = st.lists(ROWS | CHOICES | CHOICES.map(lambda group: group + "{1,2}"), min_size=1, max_size=2).map("".join)


@pytest.mark.long
@given(REGEXES, st.data())
def test_rewritten_patterns_accept_the_same_strings(regex: str, data: st.DataObject) -> None:
    pattern = common_pattern(regex)
    like = st.from_regex(re.compile(regex, re.ASCII), fullmatch=True)
    text = data.draw(like | like.map(lambda s: s + "x") | st.text(alphabet="aB7-_ .\n\x1c\u00a0é٣\\", max_size=5))
    assume(not text.endswith("\n"))  # Python's $ also matches before a final newline
    assert matches(regex, text) == (re.search(pattern, text) is not None)
