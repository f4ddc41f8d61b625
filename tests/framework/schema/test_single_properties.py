"""The choices of a schema, and properties that are none."""

from __future__ import annotations

from enum import Enum

import openafm as fm
from openafm.framework.schema.single_properties import choices_of, single_properties, title_of


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@fm.generable("A note")
class Note:
    text: str
    mood: Mood


COLORS = {"type": "string", "enum": ["red", "green"]}


def test_enums_of_properties_and_of_the_whole_answer():
    schema = {"type": "object", "properties": {"color": COLORS, "n": {"type": "integer"}, "size": {"enum": ["S", "M", "S"]}}}
    assert choices_of(schema) == {"color": ("red", "green"), "size": ("S", "M")}
    assert choices_of(COLORS) == {"": ("red", "green")}
    nested = {"type": "object", "properties": {"car": {"type": "object", "properties": {"color": COLORS}}}}
    assert choices_of(nested) == {"color": ("red", "green")}
    assert choices_of({"$ref": "#/$defs/C", "$defs": {"C": COLORS}}) == {"": ("red", "green")}
    assert choices_of({"properties": {"c": {"$ref": "#/$defs/C"}}, "$defs": {"C": COLORS}}) == {"c": ("red", "green")}


def test_values_that_may_occur_several_times_are_no_choice():
    listed = {"type": "array", "items": {"type": "object", "properties": {"color": COLORS}}}
    assert choices_of(listed) == {}
    assert choices_of({"properties": {"color": COLORS, "parts": listed}}) == {}
    assert choices_of({"properties": {"tags": {"type": "array", "items": COLORS}}}) == {}
    assert choices_of({"properties": {"color": COLORS, "b": {"properties": {"color": {"type": "string"}}}}}) == {}
    cars = [{"properties": {"color": COLORS}}, {"properties": {"color": COLORS, "doors": {"type": "integer"}}}]
    assert choices_of({"anyOf": cars}) == {}
    assert choices_of({"allOf": cars[:1]}) == {}


def test_an_object_or_null_has_its_properties():
    schema = {"anyOf": [{"properties": {"color": COLORS}}, {"type": "null"}]}
    assert choices_of(schema) == {"color": ("red", "green")}
    assert choices_of({"properties": {"car": schema}}) == {"color": ("red", "green")}
    assert choices_of({"$defs": {"Car": schema["anyOf"][0]}, "anyOf": [{"$ref": "#/$defs/Car"}, {"type": "null"}]})
    assert title_of({"anyOf": [{"type": "null"}, {"title": "Car", "properties": {}}]}) == "Car"
    assert title_of({"title": "Trip", "anyOf": [{"title": "Car"}]}) == "Trip"
    assert title_of({"type": "object"}) == ""
    paths = [each.path for each in single_properties({"properties": {"car": schema}})]
    assert paths == [(), ("car",), ("car", "color")]


def test_other_values_are_no_choice():
    properties = {"n": {"enum": [1, 2]}, "one": {"enum": ["a"]}, "any": True, "m": {"enum": ["a", None]}}
    assert choices_of({"properties": properties}) == {}
    assert choices_of({"$ref": "#/$defs/Missing"}) == {}
    looped = {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"next": {"$ref": "#/$defs/A"}, "color": COLORS}}}}
    assert choices_of(looped) == {}


def test_enums_of_generable_types():
    assert choices_of(Note.generation_schema().to_dict()) == {"mood": ("good", "bad")}


def test_texts_have_paths_and_enums_are_none():
    schema = {
        "properties": {
            "title": {"type": "string"},
            "place": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "guest": {"properties": {"name": {"type": ["string", "null"]}}},
            "color": COLORS,
            "count": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        }
    }
    texts = {each.name: each.path for each in single_properties(schema) if each.is_text}
    assert texts == {"title": ("title",), "place": ("place",), "name": ("guest", "name")}
