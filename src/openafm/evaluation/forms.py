"""Grading of forms: whether the prompt states every value, and the share of correct fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

Fields: TypeAlias = dict[tuple[str, ...], Any]

_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def is_stated(value: Any, text: str) -> bool:
    """Return whether `text` contains every leaf of a JSON value: numbers as digits or words, booleans as yes or no.

    A value without leaves is not stated.
    """
    spellings = [_spellings(leaf) for leaf in _leaves(value)]
    return bool(spellings) and all(any(_occurs(spelling, text) for spelling in of_leaf) for of_leaf in spellings)


def share_of_fields(gold: Any, answer: Any) -> float:
    """Return the share of the fields of both values that are equal. A list is one field; so is a scalar at the top."""
    expected, actual = _fields(gold), _fields(answer)
    names = expected.keys() | actual.keys()
    right = sum(name in expected and name in actual and expected[name] == actual[name] for name in names)
    return right / len(names) if names else 1.0


def _fields(value: Any, name: tuple[str, ...] = ()) -> Fields:
    """Return the leaves of nested objects by their paths."""
    if not isinstance(value, dict):
        return {name: value}
    return {inner: leaf for key, part in value.items() for inner, leaf in _fields(part, (*name, key)).items()}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def _spellings(leaf: Any) -> tuple[str, ...]:
    if isinstance(leaf, bool):
        return ("yes", "true") if leaf else ("no", "false")
    if isinstance(leaf, int) and 0 <= leaf < len(_NUMBER_WORDS):
        return (str(leaf), _NUMBER_WORDS[leaf])
    return (str(leaf),)


def _occurs(words: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None
