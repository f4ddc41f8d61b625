"""Cases of the fresh held-out sets in `sets/`: hand-written from a description of the task alone, in sixteen languages."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from openafm.data.synthetic import EVENT_SCHEMA, event_instructions, reference_week
from openafm.tokenizer.conversation import JsonSchema, ToolDefinition

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SCALARS: dict[str, JsonSchema] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "pattern": "^(?:[01][0-9]|2[0-3]):[0-5][0-9]$"},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One prompt with the schema of its answer, or with tools, and the right answer.

    `expected` is a JSON value; for an event each field holds a tuple of accepted values; for tools it is a list of
    [name, arguments]. `figure` names the row of the report.
    """

    figure: str
    language: str
    prompt: str
    expected: Any
    instructions: str = ""
    schema: JsonSchema | None = None
    tools: tuple[ToolDefinition, ...] = ()


def event_cases() -> list[Case]:
    """Messages with an event under the schema of an event, and all messages under `Event | None`."""
    nullable: JsonSchema = {"anyOf": [EVENT_SCHEMA, {"type": "null"}]}
    cases = []
    for language, today_text, message, *truth in _rows("events.txt"):
        today = datetime.date.fromisoformat(today_text)
        expected = None if truth == ["null"] else _event(truth, today)
        asked = [("nothing", nullable)] if expected is None else [("event", EVENT_SCHEMA), ("event_or_none", nullable)]
        cases += [
            Case(
                figure=figure,
                language=language,
                prompt=message,
                expected=expected,
                instructions=event_instructions(today),
                schema=schema,
            )
            for figure, schema in asked
        ]
    return cases


def iso_cases() -> list[Case]:
    """Messages whose day is a date in ISO form, while the instructions list a week of dates."""
    return [
        Case(
            figure="event_iso",
            language=language,
            prompt=message,
            expected=_event(truth, datetime.date.fromisoformat(today)),
            instructions=reference_week(datetime.date.fromisoformat(today)),
            schema=EVENT_SCHEMA,
        )
        for language, today, message, *truth in _rows("events_iso.txt")
    ]


def label_cases() -> list[Case]:
    """Each text twice: with the right label first and with the right label last."""
    cases = []
    for language, question, labels_text, text, label in _rows("labels.txt"):
        others = [other for other in labels_text.split(";") if other != label]
        for figure, labels in (("label_first", [label, *others]), ("label_last", [*others, label])):
            cases.append(
                Case(
                    figure=figure,
                    language=language,
                    prompt=text,
                    expected=label,
                    instructions=question,
                    schema=label_schema(labels),
                )
            )
    return cases


def form_cases() -> list[Case]:
    """Texts with the schema of a form; values that the text does not hold are absent."""
    return [
        Case(
            figure="form",
            language=row["language"],
            prompt=row["text"],
            expected=row["value"],
            instructions="Fill in the form.",
            schema=object_schema(row["schema"]["title"], row["schema"]["properties"]),
        )
        for row in _json_rows("forms.jsonl")
    ]


def tool_cases() -> list[Case]:
    """Requests with their set of tools; an empty list of calls where none is right."""
    cases = []
    for row in _json_rows("tools.jsonl"):
        tools = tuple(
            ToolDefinition(name=name, description=about["description"], parameters=object_schema(name, about["parameters"]))
            for name, about in row["tools"].items()
        )
        cases += [
            Case(figure="tool" if calls else "no_call", language=language, prompt=request, expected=calls, tools=tools)
            for language, request, calls in row["cases"]
        ]
    return cases


def label_schema(labels: list[str]) -> JsonSchema:
    """The schema of one label out of several, in this order."""
    return object_schema("Label", {"label": "enum:" + "|".join(labels)})


def object_schema(title: str, properties: dict[str, str]) -> JsonSchema:
    """The JSON Schema of a short form: `string`, `number?` (optional), `enum:a|b`, `list:{name:string}`."""
    return {
        "title": title,
        "type": "object",
        "properties": {name: _property(kind.removesuffix("?")) for name, kind in properties.items()},
        "required": [name for name, kind in properties.items() if not kind.endswith("?")],
        "additionalProperties": False,
        "x-order": list(properties),
    }


def _event(truth: list[str], today: datetime.date) -> dict[str, Any]:
    """Accepted values by field; `weekday` is True if the date was given as a weekday."""
    title, day, time, place = truth
    return {
        "title": tuple(title.split(";")),
        "date": (_date(day, today),),
        "time": (None if time == "-" else time,),
        "location": (None,) if place == "-" else tuple(place.split(";")),
        "weekday": day in WEEKDAYS,
    }


def _property(kind: str) -> JsonSchema:
    if kind.startswith("enum:"):
        return {"type": "string", "enum": kind.removeprefix("enum:").split("|")}
    if found := re.fullmatch(r"list:\{(.*)\}", kind):
        fields = dict(field.split(":") for field in found[1].split(","))
        return {"type": "array", "items": object_schema("Item", fields)}
    return _SCALARS[kind]


def _date(text: str, today: datetime.date) -> str | None:
    """`+n` days, a weekday after today, MM-DD at or after today, or a full date."""
    if text == "-":
        return None
    if text.startswith("+"):
        return (today + datetime.timedelta(days=int(text))).isoformat()
    if text in WEEKDAYS:
        ahead = (WEEKDAYS.index(text) - today.weekday() - 1) % 7 + 1
        return (today + datetime.timedelta(days=ahead)).isoformat()
    if len(text) == len("MM-DD"):
        day = datetime.date.fromisoformat(f"{today.year}-{text}")
        return (day if day >= today else day.replace(year=today.year + 1)).isoformat()
    return text


def _lines(name: str) -> Iterator[str]:
    text = files("openafm.evaluation.fresh").joinpath("sets", name).read_text(encoding="utf-8")
    return (line for line in text.splitlines() if line and not line.startswith("#"))


def _rows(name: str) -> Iterator[list[str]]:
    return (line.split("|") for line in _lines(name))


def _json_rows(name: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in _lines(name))
