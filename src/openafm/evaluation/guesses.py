"""Baseline for schemas: the text that follows the name of each property."""

from __future__ import annotations

import re
from typing import Any

from openafm.tokenizer.conversation import JsonSchema

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORD = re.compile(r"[^\s,;:.?!]+")
_VALUE = r"(?: is| =|:)? (.+?)(?=[;,]|[.?] |[.?]?$| with )"


def guess(schema: JsonSchema, text: str) -> Any:
    """Return a JSON value for a schema of the built-in corpus from a text. It may be wrong or invalid.

    The value of a property is the text between its name and the next punctuation mark. Without its name in the text, it is
    the next number of the text, the next word from the end, or true.
    """
    return _SchemaFiller(text, schema.get("$defs", {})).value(schema, "")


class _SchemaFiller:
    """Fills a schema from a text and uses every number and word once."""

    def __init__(self, text: str, definitions: dict[str, JsonSchema]) -> None:
        self._text, self._definitions = text, definitions
        self._numbers = iter(_NUMBER.findall(text))
        self._words = iter(reversed(_WORD.findall(text)))

    def value(self, schema: JsonSchema, name: str) -> Any:
        if "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        schema = schema.get("anyOf", [schema])[0]
        stated = self._stated(name)
        match schema["type"]:
            case "object":
                return {
                    key: self.value(part, key)
                    for key, part in schema["properties"].items()
                    if key in schema["required"] or self._stated(key)
                }
            case "array":
                return [self.value(schema["items"], name)]
            case "boolean":
                return stated not in ("no", "false")
            case "integer" | "number":
                number = _NUMBER.search(stated)
                return float(number[0] if number else next(self._numbers, "0"))
        choices = [choice for choice in schema.get("enum", ()) if choice in self._text]
        return choices[0] if choices else stated or next(self._words, "")

    def _stated(self, name: str) -> str:
        """Return the text after a property's name, spelled as in the schema or in words; empty without one."""
        if not name:
            return ""
        words = re.sub("(?=[A-Z])|_", " ", name).lower()
        match = re.search(rf"\b(?:{re.escape(name)}|{re.escape(words)}){_VALUE}", self._text)
        return match[1] if match else ""
