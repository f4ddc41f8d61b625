"""Fill the slots of frames: text in pieces, each with the field that it is the value of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from openafm.data.synthetic.text_files.source_text import Choice, Frame, Group, Literal, MarkedSpan, Part, Particle, Slot

MINUTES = "mm"  # may follow the hour without a space
BARE = "bare"  # the field of text between plain `<` and `>`


class Piece(NamedTuple):
    """Rendered text. `field` names the field that it is the value of; plain text has none."""

    text: str
    field: str = ""
    is_slot: bool = False


Pieces: TypeAlias = Sequence[Piece]
Resolve: TypeAlias = Callable[[Slot], Sequence[Piece]]
Keep: TypeAlias = Callable[[frozenset[str]], bool]


def render(
    frame: Frame, rng: random.Random, resolve: Resolve, *, keep: Keep | None = None, language: str = ""
) -> list[Piece]:
    """Return the pieces of a filled frame.

    Args:
        resolve: returns the pieces of a slot.
        keep: whether a group with slots of these names is kept; without it, half of the groups are.
    """
    return _Rendering(rng, resolve, keep or (lambda _: rng.random() < 0.5), language).pieces(frame.parts)


class _Rendering:
    """One frame while it is filled."""

    def __init__(self, rng: random.Random, resolve: Resolve, keep: Keep, language: str) -> None:
        self._rng, self._resolve, self._keep, self._language = rng, resolve, keep, language

    def pieces(self, parts: Sequence[Part]) -> list[Piece]:
        pieces: list[Piece] = []
        for part in parts:
            match part:
                case Literal():
                    pieces.append(Piece(part.text))
                case Slot():
                    found = self._resolve(part)
                    if part.capital and found:
                        first = found[0]
                        found = (Piece(capitalize(first.text, self._language), first.field), *found[1:])
                    if part.name != MINUTES and _digits_meet(pieces, found):
                        pieces.append(Piece(" "))  # 6/25 and 19:00, in languages without spaces
                    pieces.extend(Piece(text, field, True) for text, field, _ in found)
                case MarkedSpan():
                    pieces.append(Piece(text_of(self.pieces(part.parts)), part.field or BARE))
                case Group():
                    if self._keep(part.names):
                        pieces += self.pieces(part.parts)
                case Choice():
                    pieces += self.pieces(self._rng.choice(part.options))
                case Particle():
                    before = text_of(pieces[-3:])
                    follows_consonant = has_final_consonant(before)
                    if part.after_vowel.startswith("로") and has_final_l(before):
                        follows_consonant = False  # 서울로, 8로
                    pieces.append(Piece(part.after_consonant if follows_consonant else part.after_vowel))
        return pieces


def _digits_meet(before: Sequence[Piece], after: Sequence[Piece]) -> bool:
    """Whether the value of a slot ends in a digit and the next one begins with one."""
    return bool(before and after) and before[-1].is_slot and before[-1].text[-1:].isdigit() and after[0].text[:1].isdigit()


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join([piece.text for piece in pieces])


def value_of(pieces: Sequence[Piece], field: str) -> str | None:
    """The text of a field, letter by letter; None where no piece has it."""
    found = [piece.text for piece in pieces if piece.field == field]
    return "".join(found) if found else None


def capitalize(text: str, language: str = "") -> str:
    """Return `text` with its first letter as a capital."""
    first = "İ" if language == "tr" and text[:1] == "i" else text[:1].upper()
    return first + text[1:]


def lower(text: str, language: str) -> str:
    """Return `text` in lower case; Turkish has a letter i with and one without a dot."""
    return (text.replace("İ", "i").replace("I", "ı") if language == "tr" else text).lower()


def has_final_consonant(text: str) -> bool:
    """True if Korean text, read aloud, ends in a consonant."""
    last = next((char for char in reversed(text) if char.isalnum()), "")
    if "가" <= last <= "힣":
        return (ord(last) - ord("가")) % 28 > 0
    if last.isdigit():
        return last in "013678"
    return last.lower() in set("bcdfgklmnpqrtvxz")


def has_final_l(text: str) -> bool:
    """True if Korean text, read aloud, ends in the consonant rieul."""
    last = next((char for char in reversed(text) if char.isalnum()), "")
    if "가" <= last <= "힣":
        return (ord(last) - ord("가")) % 28 == 8
    return last.lower() in set("178lr")
