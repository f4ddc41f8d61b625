"""Configs: JSON both ways, dotted overrides, and errors that name the nearest key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from openafm.core.config import Config, ConfigError, UnknownKeyError, dump, from_dict, override, to_dict


@dataclass(frozen=True, kw_only=True)
class Shape(Config):
    sides: int = 3


@dataclass(frozen=True, kw_only=True)
class Colored(Shape):
    color: str = "red"


@dataclass(frozen=True, kw_only=True)
class Wave(Config):
    length: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Window(Config):
    low: int
    high: int

    def __post_init__(self) -> None:
        self.require(self.low < self.high, "low must lie below high")


@dataclass(frozen=True, kw_only=True)
class Picture(Config):
    shape: Shape = Shape()
    wave: Wave | None = None
    either: Shape | Wave = Wave()
    sizes: tuple[int, ...] = (1, 2)
    weights: dict[str, float]

    def __post_init__(self) -> None:
        self.require(len(self.sizes) > 0, "sizes must not be empty")


def test_json_round_trip_keeps_subclasses_and_unions() -> None:
    picture = Picture(shape=Colored(sides=4, color="blue"), either=Shape(sides=9), weights={"a": 1.0})
    assert from_dict(Picture, to_dict(picture)) == picture
    assert '"type": "Colored"' in dump(picture)


def test_override_by_dotted_key_parses_json_and_leaves_the_original() -> None:
    picture = Picture(weights={})
    changed = override(picture, {"shape.sides": "5", "sizes": "[7]", "wave": '{"length": 2}'})
    assert changed == Picture(shape=Shape(sides=5), sizes=(7,), wave=Wave(length=2.0), weights={})
    assert picture.shape.sides == 3


@dataclass(frozen=True, kw_only=True)
class Empty(Config):
    pass


def test_a_key_below_a_config_without_keys_is_refused() -> None:
    with pytest.raises(UnknownKeyError, match=r"Empty has no 'low'$"):
        override(Empty(), {"low": "5"})


def test_the_error_of_a_key_of_another_kind_names_that_kind() -> None:
    expected = (
        "unknown key 'shape.color': Shape has no 'color', its keys are: sides; "
        'Colored has it: set shape to {"type": "Colored", "color": VALUE}'
    )
    with pytest.raises(UnknownKeyError, match=f"^{re.escape(expected)}$"):
        override(Picture(weights={}), {"shape.color": "green"})


def test_changes_are_checked_together() -> None:
    changed = override(Picture(weights={}), {"shape": '{"type": "Colored", "sides": 8}', "shape.color": "green"})
    assert changed.shape == Colored(sides=8, color="green")
    assert override(Window(low=1, high=2), {"low": "5", "high": "6"}) == Window(low=5, high=6)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"shape.side": "5"}, UnknownKeyError, "did you mean 'sides'"),
        ({"shpae.sides": "5"}, UnknownKeyError, "did you mean 'shape'"),
        ({"shape.sides.x": "5"}, UnknownKeyError, "no keys below it"),
        ({"shape.sides": "five"}, ConfigError, "expected int"),
        ({"shape.sides": "true"}, ConfigError, "expected int"),
        ({"sizes": "[]"}, ConfigError, "must not be empty"),
        ({"either.length": "1" + "0" * 400}, ConfigError, "too large"),
    ],
)
def test_bad_overrides_are_refused(changes: dict[str, str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        override(Picture(weights={}), changes)


def test_unknown_and_missing_keys_in_json_are_refused() -> None:
    with pytest.raises(UnknownKeyError, match="weights"):
        from_dict(Picture, {"weight": {}})
    with pytest.raises(ConfigError, match="missing weights"):
        from_dict(Picture, {})
    with pytest.raises(ConfigError, match="unknown type 'Wave'"):
        from_dict(Picture, {"weights": {}, "shape": {"type": "Wave"}})


@pytest.mark.parametrize(
    "values",
    [
        {"weights": {}, "shape": {"type": ["Shape"]}},
        {"weights": {}, "either": {"type": ["Shape"]}},
        {"weights": {}, "wave": {"type": {}}},
        {"weights": 5},
    ],
)
def test_values_of_the_wrong_kind_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        from_dict(Picture, values)


@dataclass(frozen=True, kw_only=True)
class Named(Config):
    name: str = ""
    alias: str | None = "a"
    either: int | str = 0
    names: tuple[str, ...] = ()


def test_a_string_may_look_like_json() -> None:
    changed = override(Named(), {"name": "123", "alias": "true", "either": "7", "names": '["5"]'})
    assert changed == Named(name="123", alias="true", either=7, names=("5",))
    assert override(Named(), {"name": '"quoted"', "alias": "null"}) == Named(name="quoted", alias=None)
    assert override(Named(), {"name": "9" * 5000}).name == "9" * 5000
    with pytest.raises(ConfigError, match="expected str, got 5"):
        override(Named(), {"names": "[5]"})
