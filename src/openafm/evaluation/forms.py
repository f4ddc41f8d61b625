"""Grading of forms: the share of correct fields."""

from __future__ import annotations

from typing import Any, TypeAlias

Fields: TypeAlias = dict[tuple[str, ...], Any]


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
