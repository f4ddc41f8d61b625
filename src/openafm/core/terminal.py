"""Escaping of untrusted text for the terminal: model output, metadata, tensor names, notes of imports, file names."""

from __future__ import annotations

import json
import unicodedata

_KEPT = "\n\t\u00ad\u200c\u200d"  # line structure, soft hyphens, and the joiners of Persian, Indic scripts and emoji
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def escaped(text: str) -> str:
    """Return text without characters that control a terminal, reorder its text or are invisible; they become JSON escapes.

    Each character is escaped independently, so the pieces of a stream may be escaped one by one. JSON keeps its value.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(json.dumps(char)[1:-1] if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN and char not in _KEPT
