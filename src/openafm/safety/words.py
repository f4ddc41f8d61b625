"""Normalization of text to comparable words.

Normalization removes disguises: case, full-width and styled letters, invisible characters, combining strokes, Cyrillic and
Greek look-alikes of Latin letters, digits and signs for letters (b0mb, c@t), and separated letters (b o m b).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

UNDER_18 = "<18"  # second spelling of numbers below 18
SENTENCE_GAP = 100  # distance between the positions of adjacent sentences

_INVISIBLE = re.compile("[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_COMBINING = re.compile("[\u0300-\u036f]")  # marks that NFC did not compose
_LOOK_ALIKES = str.maketrans("авекмнорстухіѕјαεικνορτυχ’ʼ`", "abekmhopctyxisjaeiknoptux'''")
_SEPARATED = re.compile(r"(?<![^\W_])(?:[^\W\d_][ .\-_*]){2,}[^\W\d_](?![^\W_])")
_TOKEN = re.compile(r"[\w@$]+(?:'\w+)*|[.!?;。！？；]|\n\s*\n")
_DIGITS_AS_LETTERS = str.maketrans("013457@$", "oieastas")
_MIXED = re.compile(r"[@$]|\d")
# Scripts without spaces, or with suffixes: terms match anywhere in the text.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_UNSPACED_GAPS = re.compile(
    r"(?<=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])\s+(?=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])"
)


@dataclass(frozen=True, slots=True)
class Words:
    """Hold the words of a text and their positions, which have a gap between sentences."""

    texts: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)  # positions of the first words of sentences
    respelled: dict[int, str] = field(default_factory=dict)  # by index: digits replaced by letters, or without 's

    def spellings(self, index: int) -> tuple[str, ...]:
        """Return the alternative spellings of a word."""
        word = self.texts[index]
        return (word, self.respelled[index]) if index in self.respelled else (word,)

    def following(self, index: int) -> tuple[str, ...]:
        """Return the alternative spellings of the next word; none at the end of a sentence."""
        is_last = index + 1 >= len(self.texts) or self.positions[index + 1] != self.positions[index] + 1
        return () if is_last else self.spellings(index + 1)


def normalize(text: str) -> str:
    """Return the text without disguises; separated letters are joined."""
    if text.isascii():
        text = text.lower()
    else:
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
        text = _COMBINING.sub("", unicodedata.normalize("NFC", text)).translate(_LOOK_ALIKES)
        text = _UNSPACED_GAPS.sub("", text)
    return _SEPARATED.sub(_joined, text)


def is_unspaced(text: str) -> bool:
    """Check whether part of the text is in a script without spaces between words."""
    return _UNSPACED.search(text) is not None


def words(text: str) -> Words:
    """Return the words of normalized text."""
    found = Words()
    position, is_start = 0, True
    for token in _TOKEN.findall(text):
        if not (token[0].isalnum() or token[0] in "_@$"):
            position, is_start = position + SENTENCE_GAP, True
            continue
        if is_start:
            found.starts.add(position)
        if token.endswith("'s"):
            found.respelled[len(found.texts)] = token[:-2]
        elif _MIXED.search(token):
            found.respelled[len(found.texts)] = _respelled(token)
        found.texts.append(token)
        found.positions.append(position)
        position, is_start = position + 1, False
    return found


def _respelled(token: str) -> str:
    if token.isdecimal():
        return UNDER_18 if int(token[:3]) < 18 else token
    return token.replace("11", "ll").translate(_DIGITS_AS_LETTERS)


def sentence_ends(text: str) -> list[int]:
    """Return the character positions at which sentences of normalized text end."""
    return [match.end() for match in re.finditer(r"[.!?;。！？；]|\n\s*\n", text)]


def _joined(match: re.Match[str]) -> str:
    letters = re.sub(r"[ .\-_*]", "", match[0])
    is_article = letters[0] in "ai" and len(letters) > 3 and match[0][1] == " "  # "a b o m b"
    return f"{letters[0]} {letters[1:]}" if is_article else letters
