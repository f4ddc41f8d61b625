"""Strings that are lines of the prompt."""

from __future__ import annotations

import json

import pytest

import openafm as fm
from openafm.framework.schema.copied_lines import MOST_LINES, copied_lines, with_copied_lines

PAGE = """Presented by Verven
# FAMILY
# FUN DAY
Place: Cafe Roma
The Old Mill, 5 N
Harper Ave"""


def test_headings_are_one_text_and_other_lines_may_be_two():
    assert copied_lines(PAGE) == [
        "Presented by Verven",
        "FAMILY FUN DAY",
        "Place: Cafe Roma",
        "Cafe Roma",
        "The Old Mill, 5 N",
        "Place: Cafe Roma The Old Mill, 5 N",
        "Harper Ave",
        "The Old Mill, 5 N Harper Ave",
    ]
    assert copied_lines("") == [] == copied_lines("\n # \n")[1:]
    assert len(copied_lines("\n".join(map(str, range(1000))))) == MOST_LINES


def test_only_strings_without_another_guide_are_lines():
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "type": {"type": "string", "enum": ["a"]},
            "date": {"type": "string", "format": "date"},
            "time": {"type": "string", "pattern": "^[0-9]$"},
            "count": {"type": "integer"},
            "short": {"type": "string", "maxLength": 4},
            "default": {"type": ["string", "null"]},
            "names": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        },
        "required": ["title"],
    }
    found = with_copied_lines(schema, "one\ntwo")
    lines = ["one", "two", "one two"]
    assert found["properties"]["title"] == {"type": "string", "enum": lines}
    assert found["properties"]["names"]["items"]["anyOf"][0] == {"type": "string", "enum": lines}
    assert found["properties"]["default"] == {"type": ["string", "null"], "enum": [*lines, None]}
    for name in ("type", "date", "time", "count", "short"):
        assert found["properties"][name] == schema["properties"][name]
    assert found["required"] == ["title"]
    assert with_copied_lines(schema, " ") is schema


def test_a_response_has_whole_lines():
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("title", "location")},
        "required": ["title", "location"],
    }
    session = fm.LanguageModelSession(model=fm.SystemLanguageModel())
    options = fm.GenerationOptions(copies_lines=True)
    answer = json.loads(session.respond_blocking(PAGE, json_schema=schema, options=options).to_json())
    assert set(answer.values()) <= set(copied_lines(PAGE))
    assert session.transcript[0].options.copies_lines


def test_later_answers_may_have_lines_of_earlier_prompts():
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    session = fm.LanguageModelSession(model=fm.SystemLanguageModel())
    options = fm.GenerationOptions(copies_lines=True)
    session.respond_blocking(PAGE, json_schema=schema, options=options)
    answer = json.loads(session.respond_blocking("Who?", json_schema=schema, options=options).to_json())
    assert answer["name"] in copied_lines("Who?\n" + PAGE)
    optional = {"type": "object", "properties": {"name": {"type": ["string", "null"]}}, "required": ["name"]}
    fork = fm.LanguageModelSession.from_transcript(session.transcript, fm.SystemLanguageModel())
    answer = json.loads(fork.respond_blocking("And where?", json_schema=optional, options=options).to_json())
    assert answer["name"] is None or answer["name"] in copied_lines("And where?\nWho?\n" + PAGE)


def test_the_option_is_a_boolean():
    with pytest.raises(ValueError, match="copies_lines"):
        fm.GenerationOptions(copies_lines="yes")
