"""Escaping of untrusted text for the terminal."""

from __future__ import annotations

import io
import json

import pytest

from openafm.core.progress import progress
from openafm.core.terminal import escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
        ("a\rb\x7f\x9b31m", "a\\rb\\u007f\\u009b31m"),
        ("\u202etxt.exe\u2066", "\\u202etxt.exe\\u2066"),
        ("\U000e0041\ud800\u2028", "\\udb40\\udc41\\ud800\\u2028"),
    ],
)
def test_characters_that_control_the_terminal_or_hide_are_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert "".join(map(escaped, text)) == shown  # pieces of a stream


def test_text_of_any_language_is_unchanged() -> None:
    text = "Grüße\n\tمی\u200cخواهم 下午三点 👩\u200d👩\u200d👧 עברית"
    assert escaped(text) == text


def test_escaped_json_has_the_same_value() -> None:
    value = {"a\u202e": "\x1b \x9b \U000e0041 \ud800 grün"}
    shown = escaped(json.dumps(value, ensure_ascii=False))
    assert json.loads(shown) == value
    assert shown == '{"a\\u202e": "\\u001b \\u009b \\udb40\\udc41 \\ud800 grün"}'


def test_notes_of_a_task_are_escaped() -> None:
    stream = io.StringIO()
    with progress("pull \x1b[2J", 1, stream) as bar:
        bar.note("read \u202etxt.\x9b31m")
    assert stream.getvalue() == "pull \\u001b[2J: started\nread \\u202etxt.\\u009b31m\n"
