"""Folding of text to comparable letters, with the place of each letter in the text.

A view is one way to read a text: which characters are letters, which are separators, and which are dropped. Folding removes
case, full-width and styled letters, invisible characters, diacritics and look-alikes of Latin letters. Views add: digits and
signs for letters (sh1t), separators inside words (sh-it), spelled-out words (s h i t), and masked letters (sh*t).
Equal letters in a row are one run, so that repeated letters (shiiiit) can be compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from openafm.safety.words import DIACRITICS, INVISIBLE, LOOK_ALIKES, STROKED

MASK = "*"
_MASKS = "*#•●■×∗﹡＊░▒█"
_SIGNS = "0123456789@$€£!|+(<¢¡"
_SIGNS_AS_I = str.maketrans(_SIGNS, "oizeasgtbgaseliltccci")
_SIGNS_AS_L = str.maketrans(_SIGNS, "olzeasgtbgasellitccci")
_LETTER = r"[^\W\d_]"
_HAS_SIGNS = re.compile(rf"{_LETTER}[{re.escape(_SIGNS)}]|[{re.escape(_SIGNS)}]{_LETTER}")
_HAS_JOINED = re.compile(r"\w[^\w\s]{1,3}\w|[^\W_]_[^\W_]")
_HAS_MASKS = re.compile(rf"\w[{re.escape(_MASKS)}]+\w")
# Single letters or signs with separators between them.
_SPELLED = re.compile(r"(?<![^\W_])(?:[^\W_][\W_]{1,7}){2,}[^\W_](?![^\W_])")
_HAS_DIGITS = re.compile(r"\d")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_MORE_LOOK_ALIKES = str.maketrans(
    "βγηωհցզաԍᎪᏴᏟᎠᎬᏀᎻᎥᎫᏦᏞᎷᎡᏚᎢᏙᎳᎩᏃᏢƒıɩʋꞵⲟⲣⲥ",
    "bynwhgqwgabcdeghijklmrstvwyzpfiivbopc",
)


class Separators(Enum):
    """What a view does with characters that are no letters."""

    SPACE = "a space"
    JOINED = "dropped inside words"
    SPELLED = "dropped between single letters"


class Signs(Enum):
    """What a view does with digits and signs."""

    PLAIN = "digits are letters of their own"
    AS_I = "letters; 1 is i"
    AS_L = "letters; 1 is l"
    MASKS = "masks of one letter"


@dataclass(frozen=True, slots=True)
class Folded:
    """Hold the runs of a view.

    Attributes:
        text: one character per run; runs of separators are one space.
        lengths: the number of equal letters of each run.
        starts: where the first letter of each run is in the text.
        ends: the position after the last letter of each run.
    """

    text: str
    lengths: list[int]
    starts: list[int]
    ends: list[int]


class _Table(dict[int, str]):
    """Map characters to their letters: empty for dropped characters, a space for separators. Filled on demand."""

    def __init__(self, signs: Signs) -> None:
        super().__init__()
        self._signs = signs

    def __missing__(self, code: int) -> str:
        letters = self[code] = self._letters(chr(code))
        return letters

    def _letters(self, character: str) -> str:
        if self._signs is Signs.MASKS and character in _MASKS:
            return MASK
        if self._signs in (Signs.AS_I, Signs.AS_L) and character in _SIGNS:
            return character.translate(_SIGNS_AS_I if self._signs is Signs.AS_I else _SIGNS_AS_L)
        if INVISIBLE.match(character) or DIACRITICS.match(character):
            return ""
        folded = unicodedata.normalize("NFKC", character).casefold()
        folded = DIACRITICS.sub("", unicodedata.normalize("NFD", INVISIBLE.sub("", folded)))
        folded = unicodedata.normalize("NFC", folded).translate(STROKED).translate(LOOK_ALIKES).translate(_MORE_LOOK_ALIKES)
        letters = "".join(each for each in folded if unicodedata.category(each)[0] in "LNM")
        return letters or " "


_TABLES = {signs: _Table(signs) for signs in Signs}


def views(text: str) -> Iterator[tuple[Separators, Signs]]:
    """Return the views in which a text can read differently; most texts have one."""
    separators = [Separators.SPACE]
    if _HAS_JOINED.search(text):
        separators.append(Separators.JOINED)
    spelled = _SPELLED.findall(text)
    if spelled:
        separators.append(Separators.SPELLED)
    signs = [Signs.PLAIN]
    if _HAS_SIGNS.search(text) or any(map(_HAS_DIGITS.search, spelled)):
        signs += [Signs.AS_I, Signs.AS_L]
    for each in separators:
        for sign in signs:
            yield each, sign
    if _HAS_MASKS.search(text):
        yield Separators.SPACE, Signs.MASKS


def fold(text: str, separators: Separators = Separators.SPACE, signs: Signs = Signs.PLAIN) -> Folded:
    """Return the runs of a text in a view. `text` must be in NFC."""
    table = _TABLES[signs]
    dropped = _dropped(text, separators)
    folded = Folded("", [], [], [])
    letters: list[str] = []
    for index, character in enumerate(text):
        for letter in table[ord(character)]:
            if letter == " " and index in dropped:
                continue
            if letters and letters[-1] == letter:
                folded.lengths[-1] += 1
                folded.ends[-1] = index + 1
            else:
                letters.append(letter)
                folded.lengths.append(1)
                folded.starts.append(index)
                folded.ends.append(index + 1)
    return Folded("".join(letters), folded.lengths, folded.starts, folded.ends)


def squeezed(text: str) -> str:
    """Return the text of `fold` in the plain view, without places: about ten times as fast."""
    return _RUNS.sub(r"\1", text.translate(_TABLES[Signs.PLAIN]))


def is_unspaced(text: str) -> bool:
    """Check whether a term is in a script without spaces, where it may stand anywhere."""
    return _UNSPACED.search(text) is not None


_RUNS = re.compile(r"(.)\1+", re.DOTALL)
_IN_WORD = re.compile(r"(?<=[\w*])[^\w\s]{1,3}(?=[\w*])|(?<=[^\W_])_+(?=[^\W_])")


def _dropped(text: str, separators: Separators) -> set[int]:
    """Return the positions of separators that a view drops."""
    if separators is Separators.SPACE:
        return set()
    pattern = _IN_WORD if separators is Separators.JOINED else _SPELLED
    return {index for match in pattern.finditer(text) for index in range(match.start(), match.end())}
