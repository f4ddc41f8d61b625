"""Incremental JSON: the value that a prefix of the text determines.

A scanner tracks the last position at which the text can be cut and closed: after each character of a string, at the end of
a number, `true`, `false` or `null`, and at the value of a key. Text after that position is not part of the value yet.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_WORDS = ("true", "false", "null")
_MAX_WORD = 4_300  # characters of a number; Python parses no longer integers
_NUMBER_START = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
_HIGH_SURROGATE = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_INCOMPLETE_ESCAPE = re.compile(rf"(?:{_HIGH_SURROGATE})?(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?")  # also half of a surrogate pair


class PartialJsonError(ValueError):
    """The text is not a prefix of JSON."""


def read_json(text: str) -> Any:
    """Return the value of complete JSON text.

    Raises:
        ValueError: the text is not JSON, has a number out of the range of floats, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise ValueError("nested deeper than Python's recursion limit") from error


def is_deeper(value: Any, num_levels: int) -> bool:
    """Check whether a JSON value has more than `num_levels` levels of nesting, without recursion."""
    level = [value]
    for _ in range(num_levels):
        level = [child for parent in level for child in _children(parent)]
    return bool(level)


@dataclass(frozen=True, kw_only=True)
class JsonPrefix:
    """Hold the determined value and the number of nested values that are incomplete (0: the text is complete)."""

    value: Any
    num_open: int


class PartialJson:
    """Parse JSON text that grows by `push`."""

    def __init__(self) -> None:
        self.text = ""
        self._closers: list[str] = []  # closing brackets of open objects and lists, innermost last
        self._expects = "value"  # value, item or ], key or }, key, colon, comma, string, key string, word
        self._start = 0  # of the current string or word; in strings, of an incomplete escape
        self._cut = 0

    def push(self, text: str) -> bool:
        """Append text; return whether it determines more of the value.

        Raises:
            PartialJsonError: the text is not a prefix of JSON.
        """
        cut, start = self._cut, len(self.text)
        self.text += text
        for position, character in enumerate(text, start=start):
            self._step(position, character)
        return self._cut != cut

    def prefix(self) -> JsonPrefix:
        """Return the value determined so far; initially None with one open value.

        Raises:
            PartialJsonError: the text is not a prefix of JSON.
        """
        if self._cut == 0:
            return JsonPrefix(value=None, num_open=1)
        in_string = self._expects == "string"
        closed = self.text[: self._cut] + '"' * in_string + "".join(reversed(self._closers))
        try:
            return JsonPrefix(value=read_json(closed), num_open=len(self._closers) + in_string)
        except ValueError as error:
            raise PartialJsonError(f"not a prefix of JSON ({error}): {self.text!r:.200}") from error

    def _step(self, position: int, character: str) -> None:
        if self._expects in ("string", "key string"):
            return self._step_in_string(position, character)
        if self._expects == "word":
            if character.isalnum() or character in "+-.":
                return self._step_in_word(position)
            self._end_value(position)
        if character in " \t\n\r":
            return None
        match character:
            case '"' if self._expects in ("key", "key or }"):
                self._expects, self._start = "key string", position + 1
            case '"' if self._expects in ("value", "item or ]"):
                self._expects, self._start, self._cut = "string", position + 1, position + 1
            case ":" if self._expects == "colon":
                self._expects = "value"
            case "," if self._expects == "comma" and self._closers:
                self._expects = "key" if self._closers[-1] == "}" else "value"
            case "{" | "[" if self._expects in ("value", "item or ]"):
                self._closers.append("}" if character == "{" else "]")
                self._expects, self._cut = "key or }" if character == "{" else "item or ]", position + 1
            case "}" | "]" if self._closers[-1:] == [character] and self._expects in (
                "comma",
                f"{_kind(character)} or {character}",
            ):
                self._closers.pop()
                self._end_value(position + 1)
            case _ if self._expects in ("value", "item or ]"):
                self._expects, self._start = "word", position
                self._step_in_word(position)
            case _:
                raise self._error(position)
        return None

    def _step_in_string(self, position: int, character: str) -> None:
        is_key = self._expects == "key string"
        if character == '"' and not self.text[self._start : position].endswith("\\"):
            if is_key:
                self._expects = "colon"
            else:
                self._end_value(position + 1)
        elif not _INCOMPLETE_ESCAPE.fullmatch(self.text, self._start, position + 1):
            self._start = position + 1
            self._cut = self._cut if is_key else self._start

    def _step_in_word(self, position: int) -> None:
        if position - self._start > _MAX_WORD:
            raise self._error(position)
        word = self.text[self._start : position + 1]
        if word in _WORDS:
            self._end_value(position + 1)
        elif not (_NUMBER_START.fullmatch(word) or any(known.startswith(word) for known in _WORDS)):
            raise self._error(position)

    def _end_value(self, cut: int) -> None:
        self._expects, self._cut = "comma", cut

    def _error(self, position: int) -> PartialJsonError:
        return PartialJsonError(f"not a prefix of JSON, at character {position}: {self.text!r:.200}")


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _kind(closer: str) -> str:
    return "key" if closer == "}" else "item"
