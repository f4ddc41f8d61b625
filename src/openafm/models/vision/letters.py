"""Letters by place: the classes of letters, and the cells of a view that have one letter each. Imports no tensor library."""

from __future__ import annotations

import unicodedata

CELL = (8, 4)
"""Height and width of a cell in pixels of a view."""
NO_LETTER = 0
_FIRST, _LAST = ord("!"), ord("~")
OTHER = _LAST - _FIRST + 2
NUM_CLASSES = OTHER + 1
LETTER_TOKENS = range(64, 64 + OTHER - 1)
"""The tokens of classes 1, 2, ... in every tokenizer that openafm trains: printable ASCII follows the special tokens.
NO_LETTER and OTHER have none."""


def class_of(letter: str) -> int:
    """Return the class of a letter: of ASCII letters their own, of accented ones that of the base, of all others one."""
    base = unicodedata.normalize("NFKD", letter)[0]
    return ord(base) - _FIRST + 1 if _FIRST <= ord(base) <= _LAST else OTHER
