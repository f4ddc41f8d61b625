"""Normalization of text to comparable words.

`normalize` removes disguises that never carry meaning: case, full-width and styled letters, invisible characters, combining
strokes, look-alikes of Latin letters in other scripts, and separated letters (b o m b, b.o.m.b). Other disguises give
alternative spellings: diacritics (bömb), digits and signs for letters (b0mb, c@t), separators inside words (bo-mb).
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

UNDER_18 = "<18"  # second spelling of numbers below 18
SENTENCE_GAP = 100  # distance between the positions of adjacent sentences

# Unicode's Default_Ignorable_Code_Point, and control characters other than whitespace.
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
DIACRITICS = re.compile("[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]")
LOOK_ALIKES = str.maketrans(
    "авекмнорстухіѕјԁԛԝһӏαεικνορτυχɑɡɩօոսᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ’ʼ`",
    "abekmhopctyxisjdqwhlaeiknoptuxagionuabcdefghijklmnoprstuvwyz" + "'" * 3,
)
LOOK_ALIKES |= {start + index: 97 + index for start in (0x1F150, 0x1F170, 0x1F1E6) for index in range(26)}  # boxed letters
STROKED = str.maketrans("øłđħŧıɨƀ", "oldhtiib")
_SEPARATED = re.compile(r"(?<![^\W_])(?:[^\W\d_][\W_]{1,3}){2,}[^\W\d_](?![^\W_])")
_WORD_CHARACTER = r"[\w@$€£]"
_TOKEN = re.compile(rf"{_WORD_CHARACTER}+(?:'\w+)*|[.!?;。！？；]|\n\s*\n")
_JOINED = re.compile(rf"(?<!{_WORD_CHARACTER}){_WORD_CHARACTER}+(?:[^\w\s@$€£]{_WORD_CHARACTER}+)+")
_SEPARATOR = re.compile(r"[^\w@$€£]")
_MAX_JOINED = 32
_SIGNS_AS_LETTERS = str.maketrans("013457@$€£89!|+(", "oieastaselbgiltc")
# Scripts without spaces, or with suffixes: terms match anywhere in the text.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_UNSPACED_GAPS = re.compile(
    r"(?<=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])(?:\s+|[\-.·・_*~|/+])(?=[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])"
)


@dataclass(frozen=True, slots=True)
class Words:
    """Hold the words of a text and their positions, which have a gap between sentences."""

    texts: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)  # positions of the first words of sentences
    respelled: dict[int, list[str]] = field(default_factory=dict)  # by index: alternative spellings

    def spellings(self, index: int) -> list[str]:
        """Return the alternative spellings of a word."""
        return [self.texts[index], *self.respelled.get(index, ())]

    def following(self, index: int) -> list[str]:
        """Return the alternative spellings of the next word; none at the end of a sentence."""
        is_last = index + 1 >= len(self.texts) or self.positions[index + 1] != self.positions[index] + 1
        return [] if is_last else self.spellings(index + 1)


def normalize(text: str) -> str:
    """Return the text without disguises; separated letters are joined."""
    text = INVISIBLE.sub("", text)
    if text.isascii():
        text = text.lower()
    else:
        text = INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold()
        text = DIACRITICS.sub("", unicodedata.normalize("NFC", text)).translate(LOOK_ALIKES)
        text = _UNSPACED_GAPS.sub("", text)
    return _SEPARATED.sub(_joined, text)


def is_unspaced(text: str) -> bool:
    """Check whether part of the text is in a script without spaces between words."""
    return _UNSPACED.search(text) is not None


def words(text: str) -> Words:
    """Return the words of normalized text."""
    joined = {match.start(): match[0] for match in _JOINED.finditer(text) if len(match[0]) <= _MAX_JOINED}
    found = Words()
    position, is_start = 0, True
    for match in _TOKEN.finditer(text):
        token = match[0]
        if not (token[0].isalnum() or token[0] in "_@$€£"):
            position, is_start = position + SENTENCE_GAP, True
            continue
        if is_start:
            found.starts.add(position)
        respelled = {_respelled(token): None}
        if whole := joined.get(match.start()):
            respelled |= {_respelled(whole): None, _respelled(_SEPARATOR.sub("", whole)): None}
        respelled.pop(token, None)
        if respelled:
            found.respelled[len(found.texts)] = list(respelled)
        found.texts.append(token)
        found.positions.append(position)
        position, is_start = position + 1, False
    return found


def _respelled(token: str) -> str:
    """Return a word with letters for digits and signs, without separators, diacritics or a possessive s."""
    if token.isascii() and token.isalpha():
        return token
    if token.isdecimal():
        return UNDER_18 if int(token[:3]) < 18 else token
    token = token.removesuffix("'s")
    if not token.isascii():
        token = DIACRITICS.sub("", unicodedata.normalize("NFD", token)).translate(STROKED)
        token = unicodedata.normalize("NFC", token)
    if not token.isalpha():
        token = re.sub(r"[\W_]", "", token.replace("11", "ll").translate(_SIGNS_AS_LETTERS))
    return token


def sentence_ends(text: str) -> list[int]:
    """Return the character positions at which sentences of normalized text end."""
    return [match.end() for match in re.finditer(r"[.!?;。！？；]|\n\s*\n", text)]


def _joined(match: re.Match[str]) -> str:
    letters = re.sub(r"[\W_]", "", match[0])
    is_article = letters[0] in "ai" and len(letters) > 3 and match[0][1] == " "  # "a b o m b"
    return f"{letters[0]} {letters[1:]}" if is_article else letters
