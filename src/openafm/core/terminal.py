"""Escaping of untrusted text for the terminal: model output, adapter metadata, tensor names, replies of servers."""

from __future__ import annotations

import unicodedata

_KEPT = {"\n", "\t", "\u200c", "\u200d"}  # line structure, and the joiners of Persian, Indic scripts and emoji


def printable(text: str) -> str:
    """Return `text` with control, bidirectional and other invisible format characters as visible escapes, such as \\x1b.

    Each character is escaped independently, so the pieces of a stream may be escaped one by one.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(_escaped(char) if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in _KEPT


def _escaped(char: str) -> str:
    return char.encode("ascii", "backslashreplace").decode("ascii") if ord(char) > 127 else f"\\x{ord(char):02x}"
