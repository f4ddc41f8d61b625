"""Digits and letters of other scripts in answers."""

from __future__ import annotations

import unicodedata

_SEPARATORS = str.maketrans({"٫": ".", "٬": ",", "，": ",", "．": ".", "−": "-", "－": "-"})


def with_ascii_digits(text: str) -> str:
    """Return a text whose decimal digits of any script (Arabic, Bengali, Thai, full-width, ...) are 0 to 9."""
    if text.isascii():
        return text
    return "".join(
        str(unicodedata.decimal(each)) if not each.isascii() and each.isdecimal() else each
        for each in text.translate(_SEPARATORS)
    )
