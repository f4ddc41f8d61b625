"""Text as words that can be compared: one spelling for what looks alike.

Undone are: case, full-width and styled letters, invisible characters, strokes through letters, Cyrillic and Greek twins of
Latin letters, digits and signs for letters (b0mb, c@t), and letters that are set apart (b o m b).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

UNDER_18 = "<18"  # what a number below it is also read as
SENTENCE_GAP = 100  # added to positions between sentences, so that nothing is near across them

_INVISIBLE = re.compile("[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_STROKES = re.compile("[\u0300-\u036f]")  # marks that compose with no letter
_TWINS = str.maketrans("авекмнорстухіѕјαεικνορτυχ’ʼ`", "abekmhopctyxisjaeiknoptux'''")
_APART = re.compile(r"(?<![^\W_])(?:[^\W\d_][ .\-_*]){2,}[^\W\d_](?![^\W_])")
_TOKEN = re.compile(r"[\w@$]+(?:'\w+)*|[.!?;。！？；]|\n\s*\n")
_DIGITS_AS_LETTERS = str.maketrans("013457@$", "oieastas")
_MIXED = re.compile(r"[@$]|\d")
# Scripts written without spaces, or with endings that words do not show: terms are looked for anywhere.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_UNSPACED_GAPS = re.compile(
    r"(?<=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])\s+(?=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])"
)


@dataclass(frozen=True, slots=True)
class Words:
    """A text's words and where they stand: their numbers, with a gap between sentences."""

    texts: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)  # positions of first words of sentences
    respelled: dict[int, str] = field(default_factory=dict)  # by index: letters for digits, without 's

    def spellings(self, index: int) -> tuple[str, ...]:
        """How a word may be read."""
        word = self.texts[index]
        return (word, self.respelled[index]) if index in self.respelled else (word,)

    def following(self, index: int) -> tuple[str, ...]:
        """How the next word may be read; none where a sentence ends."""
        is_last = index + 1 >= len(self.texts) or self.positions[index + 1] != self.positions[index] + 1
        return () if is_last else self.spellings(index + 1)


def plain(text: str) -> str:
    """The text in its one spelling; letters that were set apart are joined."""
    if text.isascii():
        text = text.lower()
    else:
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
        text = _STROKES.sub("", unicodedata.normalize("NFC", text)).translate(_TWINS)
        text = _UNSPACED_GAPS.sub("", text)
    return _APART.sub(_joined, text)


def is_unspaced(text: str) -> bool:
    """Whether some of the text is in a script where words are not set apart."""
    return _UNSPACED.search(text) is not None


def words(text: str) -> Words:
    """The words of a text that is `plain` already."""
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
    """Where sentences end in a `plain` text, in characters."""
    return [match.end() for match in re.finditer(r"[.!?;。！？；]|\n\s*\n", text)]


def _joined(match: re.Match[str]) -> str:
    letters = re.sub(r"[ .\-_*]", "", match[0])
    is_article = letters[0] in "ai" and len(letters) > 3 and match[0][1] == " "  # "a b o m b"
    return f"{letters[0]} {letters[1:]}" if is_article else letters
