"""Escaping of untrusted text for the terminal."""

from __future__ import annotations

import json

import pytest

from openafm.core.terminal import printable, printable_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x7f\x9b31m", "a\\x0db\\x7f\\x9b31m"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
    ],
)
def test_characters_that_control_the_terminal_or_hide_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_text_of_any_language_is_unchanged() -> None:
    text = "Grüße\n\tمی\u200cخواهم 下午三点 👩\u200d👩\u200d👧 עברית"
    assert printable(text) == text


def test_escaped_json_has_the_same_value() -> None:
    value = {"a\u202e": "\x1b \x9b \U000e0041 \ud800 grün"}
    escaped = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(escaped) == value
    assert escaped == '{"a\\u202e": "\\u001b \\u009b \\udb40\\udc41 \\ud800 grün"}'
