"""Letters by place: the classes of letters, and the cells of a view that have one letter each. Imports no tensor library."""

from __future__ import annotations

import unicodedata

CELL = (8, 4)
"""Height and width of a cell in pixels of a view."""
NO_LETTER = 0
_FIRST, _LAST = ord("!"), ord("~")
OTHER = _LAST - _FIRST + 2
SPACE = OTHER + 1
"""The class of the middle of the gap between two words of a line."""
NUM_CLASSES = SPACE + 1
CHARACTERS = (" ", *map(chr, range(_FIRST, _LAST + 1)), "?", " ")
"""The character of each class; of no letter, and of the gap between two words, a space."""
SIZES = (11.0, 30.0)
"""Font sizes in pixels of a view, from the first to below the second, whose letters the view has. Smaller views of the same
image have its larger letters (`openafm.reading`)."""
_NARROW, _WIDE = frozenset("iljft.,:;'!|()[]I- ’"), frozenset("mwMW@%&")
_ALIKE = str.maketrans("’‘‚“”„–—−", '\'\',"""---')


def class_of(letter: str) -> int:
    """Return the class of a letter: of ASCII letters their own, of accented ones that of the base, of all others one.

    Typographic quotes and dashes are those of ASCII.
    """
    base = unicodedata.normalize("NFKD", letter.translate(_ALIKE))[0]
    return ord(base) - _FIRST + 1 if _FIRST <= ord(base) <= _LAST else OTHER


def usual_width(letter: str) -> float:
    """Return the usual width of a letter, where that of most small ones is 1."""
    if letter == "r":
        return 0.75
    return 0.55 if letter in _NARROW else 1.5 if letter in _WIDE else 1.2 if letter.isupper() else 1.0
