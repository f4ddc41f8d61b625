"""Supported types: schemas, round trips of values, rejected values."""

from __future__ import annotations

import datetime
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import openafm as fm
from openafm.framework.schema.annotations import value_type
from openafm.framework.schema.types.formatted import URL

UserId = NewType("UserId", int)


class Mood(Enum):
    CALM = "calm"
    WILD = "wild"


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: float = 0.5


@dataclass
class Tree:
    label: str
    children: list[Tree] = field(default_factory=list)


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


SCHEMAS: list[tuple[Any, dict[str, Any]]] = [
    (Decimal, {"type": "number"}),
    (datetime.datetime, {"type": "string", "format": "date-time"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (URL, {"type": "string", "format": "uri"}),
    (UserId, {"type": "integer"}),
    (Any, {}),
    (list, {"type": "array", "items": {}}),
    (dict, {"type": "object", "additionalProperties": {}}),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
    (
        dict[str, Annotated[str, fm.GenerationGuide.regex("a+")]],
        {"type": "object", "additionalProperties": {"type": "string", "pattern": "^a+$"}},
    ),
    (
        Annotated[
            dict[str, int], fm.GenerationGuide.element(fm.GenerationGuide.minimum(2)), fm.GenerationGuide.max_items(3)
        ],
        {"type": "object", "additionalProperties": {"type": "integer", "minimum": 2}, "maxProperties": 3},
    ),
    (
        Annotated[list[str], fm.GenerationGuide.anyOf(["a", "b"])],
        {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    ),
    (Annotated[str, fm.GenerationGuide.max_length(9)], {"type": "string", "maxLength": 9}),
    (Annotated[float, fm.GenerationGuide.exclusive_minimum(0)], {"type": "number", "exclusiveMinimum": 0}),
    (Annotated[int, fm.GenerationGuide.exclusive_minimum(0.5)], {"type": "integer", "minimum": 1}),
    (Annotated[int, fm.GenerationGuide.exclusive_maximum(3)], {"type": "integer", "maximum": 2}),
]


@pytest.mark.parametrize(("annotation", "schema"), SCHEMAS)
def test_schemas(annotation: Any, schema: dict[str, Any]) -> None:
    assert fm.GenerationSchema(annotation).to_dict() == schema


OFFSETS = st.integers(-1439, 1439).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INTEGERS = st.integers(-(10**18), 10**18)
NUMBERS = st.floats(-1e18, 1e18)
DECIMALS = st.decimals(-(10**12), 10**12, places=3)
URLS = st.builds(lambda host, path: URL(f"https://{host}/{path}"), st.sampled_from(["a.org", "[::1]"]), st.from_regex("[a-z]*", fullmatch=True))  # fmt: skip  # noqa: E501
POINTS = st.builds(Point, INTEGERS, NUMBERS)
TREES = st.recursive(st.builds(Tree, TEXTS), lambda below: st.builds(Tree, TEXTS, st.lists(below, max_size=3)), max_leaves=5)
MOVIES = st.fixed_dictionaries({"title": TEXTS}, optional={"year": INTEGERS})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | TEXTS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=3),
    max_leaves=6,
)
DECIMAL_TABLES = st.dictionaries(TEXTS, st.dictionaries(TEXTS, st.none() | DECIMALS, max_size=3), max_size=3)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, TEXTS),
    (int, INTEGERS),
    (float, NUMBERS),
    (bool, st.booleans()),
    (Decimal, DECIMALS),
    (datetime.date, st.dates()),
    (datetime.datetime, st.datetimes(timezones=OFFSETS)),
    (datetime.time, st.times()),
    (uuid.UUID, st.uuids()),
    (URL, URLS),
    (UserId, INTEGERS),
    (Mood, st.sampled_from(Mood)),
    (Level, st.sampled_from(Level)),
    (Literal["a", 1, True], st.sampled_from(["a", 1, True])),
    (list[list[int]], st.lists(st.lists(INTEGERS, max_size=3), max_size=3)),
    (tuple[datetime.date, ...], st.lists(st.dates(), max_size=3).map(tuple)),
    (dict[str, list[Point]], st.dictionaries(TEXTS, st.lists(POINTS, max_size=3), max_size=3)),
    (dict[str, dict[str, Decimal | None]], DECIMAL_TABLES),
    (Any, JSON),
    (Point, POINTS),
    (Tree, TREES),
    (Movie, MOVIES),
    (Point | Tree | int | None, POINTS | TREES | INTEGERS | st.none()),
    (list[Optional[uuid.UUID]], st.lists(st.none() | st.uuids(), max_size=3)),  # noqa: UP045
]


@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=[str(annotation) for annotation, _ in VALUES])
def test_values_round_trip(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    schema = fm.GenerationSchema(annotation).to_dict()
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(("date", "uuid")))

    @settings(max_examples=20, deadline=None)
    @given(values)
    def check(value: Any) -> None:
        content = fm.GeneratedContent.of(value, annotation)
        validator.validate(json.loads(content.to_json()))
        again = fm.GeneratedContent.from_json(content.to_json()).value(annotation)
        assert again == value
        assert type(again) is type(value)
        assert content.partial_value(annotation) is not None or value is None

    check()


@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=[str(annotation) for annotation, _ in VALUES])
def test_every_prefix_is_a_partial_value(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=4, deadline=None)
    @given(values)
    def check(value: Any) -> None:
        text = fm.GeneratedContent.of(value, annotation).to_json()
        for end in range(len(text)):
            partial = fm.GeneratedContent.from_json(text[:end]).partial_value(annotation)
            if isinstance(partial, dict | list | tuple) and type(value) is type(partial):
                assert len(partial) <= len(value)

    check()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Decimal, 1.5),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("0.12345678901234567890")),
        (datetime.datetime, datetime.datetime(2024, 1, 1)),
        (datetime.datetime, datetime.date(2024, 1, 1)),
        (datetime.date, datetime.datetime(2024, 1, 1)),
        (datetime.time, datetime.time(1, tzinfo=datetime.UTC)),
        (uuid.UUID, str(uuid.UUID(int=0))),
        (URL, "https://a.org"),
        (dict[str, int], {1: 2}),
        (dict[str, int], {"a": "b"}),
        (dict[str, int], []),
        (tuple[int, ...], [1]),
        (list[int], (1,)),
        (Any, {1, 2}),
        (Any, math.nan),
        (Point, {"x": 1}),
        (Movie, {"year": 3}),
        (Annotated[str, fm.GenerationGuide.min_length(2)], "a"),
        (Annotated[float, fm.GenerationGuide.exclusive_minimum(0)], 0.0),
    ],
)
def test_encoding_values_of_other_types_raises(annotation: Any, value: Any) -> None:
    with pytest.raises(fm.DecodingFailureError):
        fm.GeneratedContent.of(value, annotation)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Decimal, "1"),
        (Decimal, 10**400),
        (datetime.datetime, "2024-01-01T00:00:00"),
        (datetime.datetime, "2024-01-01 00:00:00Z"),
        (datetime.datetime, "2023-02-29T00:00:00Z"),
        (datetime.time, "24:00:00"),
        (datetime.time, "10:00"),
        (uuid.UUID, "{00000000-0000-0000-0000-000000000000}"),
        (uuid.UUID, "0" * 32),
        (URL, "ftp://a.org"),
        (URL, "https:///path"),
        (dict[str, int], {"a": 1.5}),
        (tuple[int, ...], "ab"),
        (Point, {"y": 1}),
        (Movie, {"title": "a", "more": 1}),
    ],
)
def test_decoding_json_of_other_types_raises(annotation: Any, value: Any) -> None:
    with pytest.raises(fm.DecodingFailureError):
        fm.GeneratedContent(value).value(annotation)


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    "annotation", [set[int], frozenset[str], tuple[int, str], tuple[()], dict[int, int], bytes, Pair, set]
)
def test_unsupported_types_raise(annotation: Any) -> None:
    with pytest.raises(fm.InvalidGenerationSchemaError, match="invalid type"):
        fm.GenerationSchema(annotation)


@pytest.mark.parametrize(
    ("annotation", "guide"),
    [
        (dict[str, int], fm.GenerationGuide.min_items(2)),
        (dict[str, int], fm.GenerationGuide.count(2)),
        (dict[str, int], fm.GenerationGuide.minimum(2)),
        (datetime.datetime, fm.GenerationGuide.regex("a")),
        (uuid.UUID, fm.GenerationGuide.constant("a")),
        (Any, fm.GenerationGuide.constant("a")),
        (int, fm.GenerationGuide.min_length(1)),
        (tuple[str, ...], fm.GenerationGuide.regex("a")),
    ],
)
def test_guides_that_do_not_fit_raise(annotation: Any, guide: fm.GenerationGuide) -> None:
    with pytest.raises(fm.UnsupportedGuideError):
        fm.GenerationSchema(Annotated[annotation, guide])


def test_guides_that_leave_no_value_raise() -> None:
    guide = fm.GenerationGuide
    for annotation, guides in [
        (float, (guide.exclusive_minimum(1), guide.maximum(1))),
        (int, (guide.exclusive_minimum(1), guide.exclusive_maximum(2))),
        (str, (guide.min_length(3), guide.max_length(2))),
        (str, (guide.max_length(2), guide.constant("abc"))),
        (Decimal, (guide.minimum(2), guide.maximum(1))),
        (dict[str, int], (guide.min_items(1), guide.max_items(0))),
    ]:
        with pytest.raises(fm.UnsupportedGuideError, match="leave"):
            value_type(Annotated[(annotation, *guides)])


def test_explicit_properties_and_nested_schemas() -> None:
    from openafm.framework.schema.structure import SchemaProperty

    class Cat:
        pass

    point = fm.GenerationSchema(Point)
    schema = fm.GenerationSchema(
        type_class=Cat,
        description="A cat",
        properties=[
            SchemaProperty(name="name", type_class=str, description="Name", guides=[fm.GenerationGuide.regex("[A-Z].*")]),
            SchemaProperty(name="places", type_class=list[Point]),
        ],
        dynamic_nested_types=[point],
    )
    as_dict = schema.to_dict()
    assert (as_dict["title"], as_dict["description"], as_dict["required"]) == ("Cat", "A cat", ["name", "places"])
    assert as_dict["properties"]["name"] == {"type": "string", "pattern": "^[A-Z].*$", "description": "Name"}
    assert as_dict["$defs"] == {"Point": point.to_dict()}
    assert [prop.name for prop in schema.properties] == ["name", "places"]


def test_plain_dataclasses_have_snapshots() -> None:
    content = fm.GeneratedContent.from_json('{"label":"a","children":[{"label":"b"},{"la')
    partial = content.partial_value(Tree)
    assert (partial.label, [child.label for child in partial.children]) == ("a", ["b", None])
    assert partial.children[0].generation_id == content.partial_value(Tree).children[0].generation_id
    assert value_type(Tree) is value_type(Tree)


def test_generable_classes_take_positional_arguments_where_possible() -> None:
    @fm.generable
    class Cat:
        name: str = fm.guide("Its name")
        lives: int = 9

    assert Cat("Mo", 8) == Cat(name="Mo", lives=8)  # type: ignore[misc]

    @fm.generable
    class Odd:
        lives: int = 9
        name: str

    assert Odd(name="Mo").lives == 9


def test_convertible_protocols() -> None:
    from openafm.framework.schema.content import ConvertibleFromGeneratedContent, ConvertibleToGeneratedContent

    @fm.generable
    class Cat:
        name: str

    cat = Cat(name="Mo")
    assert isinstance(cat, ConvertibleFromGeneratedContent)
    assert isinstance(cat, ConvertibleToGeneratedContent)
    assert cat.generated_content.value(Cat) == cat
    assert fm.GeneratedContent({"name": None}).value(str, "name") is None
