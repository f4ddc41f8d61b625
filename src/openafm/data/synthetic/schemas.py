"""JSON Schemas of random shape: names in several styles, optional and nullable properties."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openafm.tokenizer.conversation import JsonSchema

TIME_PATTERN = "^(?:[01][0-9]|2[0-3]):[0-5][0-9]$"
STYLES = ("snake", "snake", "snake", "camel", "camel", "pascal", "kebab", "spaced")


@dataclass(frozen=True)
class PropertyDraft:
    """A property: its name, its schema, and how its absence is written: left out, null, or not at all."""

    name: str
    schema: JsonSchema
    absence: str = "never"  # never, omitted, null


def styled(words: str, style: str) -> str:
    """Return words as one name: snake, camel, pascal, kebab or spaced."""
    parts = words.replace("_", " ").split()
    match style:
        case "camel":
            return parts[0].lower() + "".join(part[:1].upper() + part[1:] for part in parts[1:])
        case "pascal":
            return "".join(part[:1].upper() + part[1:] for part in parts)
    return {"snake": "_", "kebab": "-", "spaced": " "}[style].join(parts)


def nullable(schema: JsonSchema) -> JsonSchema:
    """Return a schema that also allows null."""
    return {"anyOf": [schema, {"type": "null"}]}


def object_schema(title: str, properties: Sequence[PropertyDraft], description: str = "") -> JsonSchema:
    """Return the schema of an object, as the framework writes it."""
    return {
        "title": title,
        **({"description": description} if description else {}),
        "type": "object",
        "properties": {p.name: nullable(p.schema) if p.absence == "null" else p.schema for p in properties},
        "required": [p.name for p in properties if p.absence != "omitted"],
        "additionalProperties": False,
        "x-order": [p.name for p in properties],
    }


def answer_object(properties: Sequence[PropertyDraft], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that has these values, in the order of the properties; missing ones are omitted or null."""
    answer: dict[str, Any] = {}
    for prop in properties:
        if prop.name in values:
            answer[prop.name] = values[prop.name]
        elif prop.absence == "null":
            answer[prop.name] = None
    return answer


def draw_title(rng: random.Random, words: str) -> str:
    """Return a title for a schema."""
    return styled(words, "pascal") + rng.choice(("", "", "", "", "Info", "Data", "Record", "Entry"))
