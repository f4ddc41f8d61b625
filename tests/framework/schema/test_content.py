"""Generated content: conversion to typed values and back, partial JSON, growing snapshots."""

from __future__ import annotations

import datetime
import itertools
import json
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import openafm as fm
from openafm.framework.schema.partial_json import PartialJson, PartialJsonError


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@fm.generable
class Cat:
    name: str
    lives: int = 9


@fm.generable
class Dog:
    barks: bool


@fm.generable
class House:
    address: str
    built: datetime.date
    color: Color
    rooms: list[list[float]]
    pets: list[Cat | Dog]
    owner: str | int | None
    annex: House | None = None
    kind: Literal["flat", "villa"] = "flat"


HOUSE = House(
    address='12 "Rose" Lane\n\U0001f339',
    built=datetime.date(2024, 2, 29),
    color=Color.BLUE,
    rooms=[[1.0, 2.5], []],
    pets=[Cat(name="Mo"), Dog(barks=True)],
    owner=7,
    annex=House(address="", built=datetime.date(1, 1, 1), color=Color.RED, rooms=[], pets=[], owner=None),
)


def test_instances_round_trip_through_json() -> None:
    content = HOUSE.generated_content  # type: ignore[attr-defined]
    assert content.value(House) == HOUSE
    assert fm.GeneratedContent.from_json(content.to_json()).value(House) == HOUSE
    encoded = json.loads(content.to_json())
    assert encoded["pets"] == [{"Cat": {"name": "Mo", "lives": 9}}, {"Dog": {"barks": True}}]
    assert "owner" not in encoded["annex"]


def test_absent_properties_take_defaults_or_none() -> None:
    content = fm.GeneratedContent(
        {"address": "a", "built": "2020-01-31", "color": "red", "rooms": [[1]], "pets": [{"Cat": {"name": "x"}}]}
    )
    house = content.value(House)
    assert (house.owner, house.annex, house.kind, house.pets) == (None, None, "flat", [Cat(name="x", lives=9)])
    assert type(house.rooms[0][0]) is float


@pytest.mark.parametrize(
    ("type_class", "value", "text"),
    [
        (Cat, {}, "the property 'name' of Cat is missing"),
        (Cat, {"name": 3}, r"\$\.name: expected str, got 3"),
        (Cat, {"name": "a", "lives": True}, r"\$\.lives: expected int"),
        (Cat, {"name": "a", "lives": 1.5}, "expected int"),
        (Cat, {"name": "a", "age": 1}, "no property 'age'"),
        (Cat, [], "expected Cat"),
        (list[Cat], [{"name": "a"}, 5], r"\$\[1\]: expected Cat"),
        (float, 10**400, "expected float"),
        (int, "1", "expected int"),
        (Color, "green", "expected Color"),
        (datetime.date, "2023-02-29", "expected date"),
        (datetime.date, "20230228", "expected date"),
        (Cat | Dog, {"Cow": {}}, r"expected Cat \| Dog"),
        (Literal[1], True, "expected Literal"),
    ],
)
def test_values_of_another_type_raise(type_class: Any, value: Any, text: str) -> None:
    content = fm.GeneratedContent({"it": value})
    with pytest.raises(fm.DecodingFailureError, match=text.replace(r"\$", r"\$\.it")):
        content.value(type_class, "it")


def test_value_of_one_property() -> None:
    content = fm.GeneratedContent({"n": 3, "list": [1], "cat": {"name": "Mo"}})
    assert content.value(int, "n") == 3
    assert content.value(int, "absent") is None
    assert content.value(list, for_property="list") == [1]
    assert content.value(Cat, "cat") == Cat(name="Mo")
    assert content.value() == {"n": 3, "list": [1], "cat": {"name": "Mo"}}
    with pytest.raises(fm.DecodingFailureError) as caught:
        content.value(str, "n")
    assert caught.value.raw_content == content.to_json()


def test_empty_and_invalid_content() -> None:
    empty = fm.GeneratedContent({})
    assert empty.to_json() == "{}"
    assert empty.is_complete
    assert empty == fm.GeneratedContent()
    with pytest.raises(TypeError, match="serializable"):
        fm.GeneratedContent({"day": datetime.date(2024, 1, 1)})
    for text in ('{"a" 1}', '{"a":1e999}', "[NaN]"):
        with pytest.raises(fm.DecodingFailureError) as caught:
            fm.GeneratedContent.from_json(text)
        assert caught.value.raw_content == text


def test_error_of_a_constructor_is_a_decoding_failure() -> None:
    @fm.generable
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("odd")

    with pytest.raises(fm.DecodingFailureError, match=r"Even refused .* odd"):
        fm.GeneratedContent({"n": 3}).value(Even)


def test_deep_nesting_is_a_decoding_failure() -> None:
    @fm.generable
    class Deep:
        next: Deep | None = None

    value: dict[str, Any] = {}
    for _ in range(600):
        value = {"next": value}
    content = fm.GeneratedContent({})
    content._value = value
    with pytest.raises(fm.DecodingFailureError, match="nested deeper"):
        content.value(Deep)


def test_snapshots_grow_field_by_field_in_declared_order() -> None:
    text = HOUSE.generated_content.to_json()  # type: ignore[attr-defined]
    identity = fm.GenerationID()
    fields = ["address", "built", "color", "rooms", "pets", "owner", "annex", "kind"]
    previous: Any = None
    addresses = []
    for end in range(1, len(text) + 1):
        snapshot = fm.GeneratedContent.from_json(text[:end], id=identity).value(House.PartiallyGenerated)  # type: ignore[attr-defined]
        seen = [name for name in fields if getattr(snapshot, name) is not None]
        assert seen == fields[: len(seen)]
        addresses.append(snapshot.address or "")
        assert snapshot.built in (None, HOUSE.built)
        assert snapshot.color in (None, HOUSE.color)
        if previous is not None:
            assert snapshot.generation_id == previous.generation_id
            assert len(snapshot.pets or []) >= len(previous.pets or [])
            assert len(snapshot.rooms or []) >= len(previous.rooms or [])
            for now, before in zip(snapshot.pets or [], previous.pets or [], strict=False):
                assert now.generation_id == before.generation_id
        previous = snapshot
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(addresses))
    assert len(set(addresses)) == len(HOUSE.address) + 1
    assert previous.pets[0] == Cat.PartiallyGenerated(name="Mo", lives=9)  # type: ignore[attr-defined]
    assert previous.pets[0].generation_id != previous.pets[1].generation_id


def test_ambiguous_string_is_none_until_complete() -> None:
    @fm.generable
    class When:
        day: datetime.date | str

    partial = When.PartiallyGenerated  # type: ignore[attr-defined]
    assert fm.GeneratedContent.from_json('{"day":"2024-0').value(partial).day is None
    assert fm.GeneratedContent.from_json('{"day":"2024-02-01"').value(partial).day == datetime.date(2024, 2, 1)
    assert fm.GeneratedContent.from_json('{"day":"soon"}').value(partial).day == "soon"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


def is_prefix(part: Any, whole: Any, is_open: bool) -> bool:
    """Check whether `part` is a snapshot of `whole`."""
    if isinstance(part, str) and isinstance(whole, str) and is_open:
        return whole.startswith(part)
    if isinstance(part, list) and isinstance(whole, list) and is_open:
        last = len(part) - 1
        return len(part) <= len(whole) and all(is_prefix(item, whole[i], i == last) for i, item in enumerate(part))
    if isinstance(part, dict) and isinstance(whole, dict) and is_open:
        last = len(part) - 1
        return list(part) == list(whole)[: len(part)] and all(
            is_prefix(part[key], whole[key], i == last) for i, key in enumerate(part)
        )
    return type(part) is type(whole) and part == whole


@settings(max_examples=60, deadline=None)
@given(JSON_VALUES, st.booleans(), st.integers(1, 7))
def test_every_prefix_of_json_is_a_growing_value(value: Any, is_ascii: bool, step: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    partial = PartialJson()
    for start in range(0, len(text), step):
        partial.push(text[start : start + step])
        prefix = partial.prefix()
        if prefix.value is not None:
            assert is_prefix(prefix.value, value, is_open=True), (text[: start + step], prefix)
        if prefix.num_open == 0:
            assert prefix.value == value
    if isinstance(value, str | list | dict):
        assert prefix.num_open == 0


def test_incomplete_escapes_are_not_shown() -> None:
    partial = PartialJson()
    shown = []
    for character in r'"a\ud83c\udf39\n\\"':
        partial.push(character)
        shown.append(partial.prefix().value)
    assert list(dict.fromkeys(shown)) == ["", "a", "a\U0001f339", "a\U0001f339\n", "a\U0001f339\n\\"]


@pytest.mark.parametrize(
    "text", ["}", "[}", "[1,]", "{1", '{"a":}', "[1 2", "truf", "[--", "01", "1.e", '"\x01', '{"a":1}x', '"\\q', "tru "]
)
def test_invalid_prefix_raises(text: str) -> None:
    with pytest.raises(PartialJsonError):
        partial = PartialJson()
        partial.push(text)
        partial.prefix()


def test_long_numbers_and_errors_take_bounded_work() -> None:
    with pytest.raises(PartialJsonError) as caught:
        PartialJson().push("1" * 100_000)
    assert len(str(caught.value)) < 300
