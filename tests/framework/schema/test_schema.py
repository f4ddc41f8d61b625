"""Generation schemas: Apple's JSON Schema for each kind of type, and errors for unsupported types."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest

import openafm as fm


class Mood(Enum):
    CALM = "calm"
    WILD = "wild"


class Size(Enum):
    SMALL = 1
    LARGE = 2


@fm.generable("A step of a recipe")
class Step:
    text: str
    minutes: int | None = fm.guide("How long it takes", range=(1, 90))


@fm.generable
class Recipe:
    title: str = fm.guide("Short and plain")
    steps: list[Step] = fm.guide(min_items=1, max_items=9)
    variants: list["Recipe"] = fm.guide("Other ways", max_items=2)  # noqa: UP037
    source: Optional[str]  # noqa: UP045


@fm.generable
class Everything:
    text: str
    code: str = fm.guide(regex=r"[A-Z]\d{3}")
    color: str = fm.guide(anyOf=["red", "blue"])
    fixed: str = fm.guide(constant="v1")
    integer: int = fm.guide(minimum=0.5, maximum=9.5)
    number: float = fm.guide(range=(-1.5, 2))
    flag: bool
    day: datetime.date
    mood: Mood
    size: Size
    literal: Literal["a", 1, True]
    either: int | str
    step_or_recipe: Step | Recipe | None
    grid: list[list[float]] = fm.guide(count=2)
    ratings: list[int | None] = fm.guide(element=fm.GenerationGuide.range((1, 5)))
    annotated: list[Annotated[str, fm.GenerationGuide.regex("x+")]]
    defaulted: int = 3
    factory: list[str] = field(default_factory=list)


def schema_of(type_class: Any) -> dict[str, Any]:
    return fm.GenerationSchema(type_class).to_dict()


def test_recursive_class_has_apples_schema() -> None:
    step = {
        "title": "Step",
        "description": "A step of a recipe",
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "minutes": {"type": "integer", "minimum": 1, "maximum": 90, "description": "How long it takes"},
        },
        "required": ["text"],
        "additionalProperties": False,
        "x-order": ["text", "minutes"],
    }
    assert schema_of(Recipe) == {
        "title": "Recipe",
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "Short and plain"},
            "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "minItems": 1, "maxItems": 9},
            "variants": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2, "description": "Other ways"},
            "source": {"type": "string"},
        },
        "required": ["title", "steps", "variants"],
        "additionalProperties": False,
        "x-order": ["title", "steps", "variants", "source"],
        "$defs": {"Step": step},
    }


def test_every_kind_of_property() -> None:
    schema = schema_of(Everything)
    tagged = [
        {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/{name}"}},
            "required": [name],
            "additionalProperties": False,
            "x-order": [name],
        }
        for name in ("Step", "Recipe")
    ]
    assert schema["properties"] == {
        "text": {"type": "string"},
        "code": {"type": "string", "pattern": "^[A-Z][0-9]{3}$"},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "fixed": {"type": "string", "enum": ["v1"]},
        "integer": {"type": "integer", "minimum": 1, "maximum": 9},
        "number": {"type": "number", "minimum": -1.5, "maximum": 2},
        "flag": {"type": "boolean"},
        "day": {"type": "string", "format": "date"},
        "mood": {"type": "string", "enum": ["calm", "wild"]},
        "size": {"type": "string", "enum": ["SMALL", "LARGE"]},
        "literal": {"type": ["boolean", "integer", "string"], "enum": ["a", 1, True]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "step_or_recipe": {"anyOf": tagged},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "minItems": 2, "maxItems": 2},
        "ratings": {
            "type": "array",
            "items": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "null"}]},
        },
        "annotated": {"type": "array", "items": {"type": "string", "pattern": "^x+$"}},
        "defaulted": {"type": "integer", "default": 3},
        "factory": {"type": "array", "items": {"type": "string"}},
    }
    assert set(schema["x-order"]) - set(schema["required"]) == {"step_or_recipe", "defaulted", "factory"}
    assert schema["$defs"]["Recipe"]["properties"]["variants"]["items"] == {"$ref": "#/$defs/Recipe"}


def test_schemas_of_types_other_than_classes() -> None:
    assert schema_of(int) == {"type": "integer"}
    assert schema_of(str | None) == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    recipes = fm.GenerationSchema(list[Recipe], description="A book")
    assert recipes.to_dict()["items"] == {"$ref": "#/$defs/Recipe"}
    assert recipes.to_dict()["description"] == "A book"
    assert set(recipes.to_dict()["$defs"]) == {"Recipe", "Step"}
    assert [prop.name for prop in fm.GenerationSchema(Step).properties] == ["text", "minutes"]


def test_mutual_recursion_of_local_classes() -> None:
    @fm.generable
    class Folder:
        files: list[File]
        parent: Folder | None = None

    @fm.generable
    class File:
        name: str
        folder: Folder | None

    assert schema_of(Folder)["properties"]["files"]["items"] == {"$ref": "#/$defs/File"}
    assert schema_of(File)["$defs"]["Folder"]["properties"]["files"]["items"] == {"$ref": "#"}


@pytest.mark.parametrize(
    ("annotation", "guides", "text"),
    [
        (str, {"minimum": 5}, "'minimum' does not fit values of type str"),
        (str, {"count": 5}, "count"),
        (str, {"element": fm.GenerationGuide.minimum(1)}, "element"),
        (int, {"anyOf": ["young", "old"]}, "anyOf"),
        (int, {"regex": r"\d+"}, "regex"),
        (float, {"min_items": 1}, "minItems"),
        (bool, {"minimum": 0}, "minimum"),
        (datetime.date, {"regex": "2.*"}, "regex"),
        (list[int], {"range": (0, 9)}, "range"),
        (list[int], {"anyOf": ["a"]}, "anyOf"),
        (list[str], {"regex": "a"}, "regex"),
        (list[str], {"element": fm.GenerationGuide.maximum(3)}, "maximum"),
        (Step, {"constant": "x"}, "constant"),
        (int | str, {"minimum": 0}, "minimum"),
        (int, {"minimum": 5, "maximum": 3}, "at least 5 and at most 3"),
        (int, {"range": (0.2, 0.8)}, "at least 1 and at most 0"),
        (float, {"range": (1.0, 2.0), "minimum": 3}, "leave no float"),
        (list[int], {"count": 2, "min_items": 3}, "at least 3 and at most 2"),
        (list[int], {"min_items": 3, "max_items": 2}, "leave no list"),
        (str, {"anyOf": []}, "leaves no value"),
        (str, {"anyOf": ["ab", "b"], "regex": "x+"}, "leaves no value"),
        (str, {"anyOf": ["a"], "constant": "b"}, "leaves no value"),
        (Mood, {"anyOf": ["sad"]}, "leaves no value"),
        (Literal["a", "b"], {"regex": "c"}, "leaves no value"),
        (str, {"constant": "\ud800"}, "surrogate"),
        (str, {"regex": "("}, "not a regular expression"),
        (float, {"maximum": 1e19}, "cannot be enforced"),
    ],
)
def test_guides_that_do_not_fit_or_contradict_raise(annotation: Any, guides: dict[str, Any], text: str) -> None:
    class Holder:
        __annotations__ = {"value": annotation}
        value = fm.guide(**guides)

    holder = fm.generable(Holder)  # the schema checks guides, not the decorator
    with pytest.raises(fm.UnsupportedGuideError, match=text) as caught:
        fm.GenerationSchema(holder)
    assert "Holder.value" in str(caught.value)


def test_choices_are_narrowed_by_every_guide() -> None:
    @fm.generable
    class Narrow:
        a: Mood = fm.guide(anyOf=["wild", "sad"])
        b: Literal["ab", "cd"] = fm.guide(regex="a.")
        c: str = fm.guide(anyOf=["ab", "cd", "ab"], regex=".d")

    properties = schema_of(Narrow)["properties"]
    assert [properties[name]["enum"] for name in "abc"] == [["wild"], ["ab"], ["cd"]]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (set, "invalid type set"),
        (bytes, "invalid type bytes"),
        (datetime.timedelta, "timedelta"),
        (tuple[int, int], "tuple"),
        (set[int], "set"),
        (dict[int, str], "dict"),
        (dict[str, bytes], "bytes"),
        (Step | dict[str, int], "is ambiguous"),
        (object, "object"),
        (Literal[b"x"], "Literal"),
        (Literal[None], "Literal"),
        (Enum("Nothing", []), "no members"),
        (list[int] | list[str], "several lists"),
    ],
)
def test_unsupported_types_raise(annotation: Any, text: str) -> None:
    with pytest.raises(fm.InvalidGenerationSchemaError, match=text):
        fm.GenerationSchema(annotation)


@fm.generable
class Endless:
    next: Endless


@fm.generable
class EndlessPair:
    pair: list[EndlessPair] = fm.guide(count=2)


@fm.generable
class EndlessUnion:
    either: EndlessUnion | Endless


@fm.generable
class HoldsEndless:
    endless: Endless | None = None


@fm.generable
class Linked:
    next: Linked | None = None
    either: Linked | Step
    many: list[Linked] = fm.guide(max_items=3)


def test_infinite_types_raise() -> None:
    for endless in (Endless, EndlessPair, EndlessUnion, HoldsEndless):
        with pytest.raises(fm.InvalidGenerationSchemaError, match="no value is finite"):
            fm.GenerationSchema(endless)
    assert fm.GenerationSchema(Linked).to_dict()["title"] == "Linked"


def test_two_classes_with_one_name_raise() -> None:
    inner = fm.generable(type("Step", (), {"__annotations__": {"n": int}}))

    @fm.generable
    class Both:
        a: Step
        b: inner  # type: ignore[valid-type]

    with pytest.raises(fm.InvalidGenerationSchemaError, match="two classes named Step"):
        fm.GenerationSchema(Both)
    with pytest.raises(fm.InvalidGenerationSchemaError, match="two classes named Step"):
        fm.GenerationSchema(Step | inner)


def test_defaults_must_have_the_declared_type() -> None:
    @fm.generable
    class Wrong:
        count: int = "three"  # type: ignore[assignment]

    with pytest.raises(fm.InvalidGenerationSchemaError, match=r"Wrong\.count: the default"):
        fm.GenerationSchema(Wrong)


def test_decorator_rejects_what_cannot_be_a_dataclass() -> None:
    with pytest.raises(fm.InvalidGenerationSchemaError, match=r"no annotated field(.*\n)*.*title: str"):
        fm.generable(type("Bare", (), {"name": "x"}))
    with pytest.raises(fm.InvalidGenerationSchemaError, match="default_factory"):
        fm.generable(type("Mutable", (), {"__annotations__": {"tags": list}, "tags": []}))
    with pytest.raises(fm.InvalidGenerationSchemaError, match="decorates a class"):
        fm.generable(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not a base class"):
        type("Sub", (fm.Generable,), {})


def test_undefined_names_raise_when_the_schema_is_made() -> None:
    @fm.generable
    class Lost:
        value: Undefined  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(fm.InvalidGenerationSchemaError, match=r"type hints of Lost .*Undefined"):
        fm.GenerationSchema(Lost)


def test_dataclass_decorators_and_inheritance() -> None:
    @dataclass
    @fm.generable("outer")
    class Outer:
        name: str

    @fm.generable
    @dataclass
    class Base:
        name: str

    @fm.generable
    class Derived(Base):
        size: int = fm.guide(minimum=1)

    assert schema_of(Outer)["description"] == "outer"
    assert Base("positional").name == "positional"
    assert schema_of(Derived)["x-order"] == ["name", "size"]
    assert Derived(name="a", size=2).size == 2
    assert isinstance(Derived, fm.Generable)
    assert isinstance(Derived(name="a", size=2), fm.Generable)
    assert not isinstance(Step(text="", minutes=None).text, fm.Generable)


def test_properties_may_shadow_type_names() -> None:
    @fm.generable
    class Event:
        datetime: str
        date: datetime.date  # type: ignore[name-defined]

    assert schema_of(Event)["properties"]["date"]["format"] == "date"


def test_redefined_local_classes_replace_the_old_ones() -> None:
    def cell() -> tuple[Any, Any]:
        @fm.generable
        class First:
            second: Second

        @fm.generable
        class Second:
            n: int

        return First, Second

    old = cell()
    first, second = cell()
    assert fm.GenerationSchema(first).properties[0].type_class is second
    assert second is not old[1]
