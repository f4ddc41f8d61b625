"""What a schema is filled with when there is no model: what stands behind the names of its properties in a text."""

from __future__ import annotations

import re
from typing import Any

from openafm.tokenizer.conversation import JsonSchema

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_WORD = re.compile(r"[^\s,;:.?!]+")
_VALUE = r"(?: is| =|:)? (.+?)(?=[;,]|[.?] |[.?]?$| with )"


def guess(schema: JsonSchema, text: str) -> Any:
    """JSON for a schema of the built-in corpus out of a text, sometimes right and not always valid.

    A property's value is what follows its name, up to a comma or the like. Where its name does not stand in the text, it is
    the next of the text's numbers, the next of its words from the last on, or true.
    """
    return _Reader(text, schema.get("$defs", {})).value(schema, "")


class _Reader:
    """A text while it is read, with the words and numbers that have not been used."""

    def __init__(self, text: str, definitions: dict[str, JsonSchema]) -> None:
        self._text, self._definitions = text, definitions
        self._numbers = iter(_NUMBER.findall(text))
        self._words = iter(reversed(_WORD.findall(text)))

    def value(self, schema: JsonSchema, name: str) -> Any:
        if "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
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
        """What follows a property's name, in the schema's spelling or in words; empty where there is none."""
        if not name:
            return ""
        words = re.sub("(?=[A-Z])|_", " ", name).lower()
        match = re.search(rf"\b(?:{re.escape(name)}|{re.escape(words)}){_VALUE}", self._text)
        return match[1] if match else ""
