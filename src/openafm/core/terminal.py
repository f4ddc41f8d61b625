"""Escaping of untrusted text for the terminal: model output, adapter metadata, tensor names, replies of servers."""

from __future__ import annotations

import json
import unicodedata

_KEPT = set("\n\t\u00ad\u200c\u200d")  # line structure, soft hyphens, and the joiners of Persian, Indic scripts and emoji


def printable(text: str) -> str:
    """Return `text` with control, bidirectional and other invisible format characters as visible escapes, such as \\x1b.

    Each character is escaped independently, so the pieces of a stream may be escaped one by one.
    """
    return "".join(_escaped(char) if _is_hidden(char) else char for char in text)


def printable_json(text: str) -> str:
    """Return JSON text with these characters as JSON escapes; its value is the same."""
    return "".join(json.dumps(char)[1:-1] if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return not char.isprintable() and unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in _KEPT


def _escaped(char: str) -> str:
    return char.encode("ascii", "backslashreplace").decode("ascii") if ord(char) > 127 else f"\\x{ord(char):02x}"
