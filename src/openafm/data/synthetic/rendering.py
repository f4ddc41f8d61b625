"""Fill the slots of frames: text in pieces, each with the field that it is the value of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from openafm.data.synthetic.source_text import Choice, Frame, Group, Literal, Part, Particle, Slot, Span, names_of

BARE = "bare"  # the field of text between plain `<` and `>`


@dataclass(frozen=True)
class Piece:
    """Rendered text. `field` names the field that it is the value of; plain text has none."""

    text: str
    field: str = ""
    is_slot: bool = False


Pieces: TypeAlias = tuple[Piece, ...]
Resolve: TypeAlias = Callable[[Slot], Sequence[Piece]]
Keep: TypeAlias = Callable[[frozenset[str]], bool]


def render(frame: Frame, rng: random.Random, resolve: Resolve, *, keep: Keep | None = None, language: str = "") -> Pieces:
    """Return the pieces of a filled frame.

    Args:
        resolve: returns the pieces of a slot.
        keep: whether a group with slots of these names is kept; without it, half of the groups are.
    """
    pieces: list[Piece] = []
    _render(frame.parts, pieces, rng, resolve, keep or (lambda _: rng.random() < 0.5), language)
    return tuple(pieces)


def _render(
    parts: Sequence[Part], pieces: list[Piece], rng: random.Random, resolve: Resolve, keep: Keep, language: str
) -> None:
    for part in parts:
        match part:
            case Literal(text):
                pieces.append(Piece(text))
            case Slot():
                found = [replace(piece, is_slot=True) for piece in resolve(part)]
                if part.capital and found:
                    found[0] = replace(found[0], text=capitalize(found[0].text, language))
                pieces += found
            case Span(field, inner):
                start = len(pieces)
                _render(inner, pieces, rng, resolve, keep, language)
                pieces[start:] = [Piece(text_of(pieces[start:]), field or BARE)]
            case Group(inner):
                if keep(names_of(inner)):
                    _render(inner, pieces, rng, resolve, keep, language)
            case Choice(options):
                _render(rng.choice(options), pieces, rng, resolve, keep, language)
            case Particle(after_consonant, after_vowel):
                text = after_consonant if has_final_consonant(text_of(pieces[-3:])) else after_vowel
                pieces.append(Piece(text))


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def value_of(pieces: Sequence[Piece], field: str) -> str | None:
    """The text of a field, letter by letter; None where no piece has it."""
    found = [piece.text for piece in pieces if piece.field == field]
    return "".join(found) if found else None


def capitalize(text: str, language: str = "") -> str:
    """Return `text` with its first letter as a capital."""
    first = "İ" if language == "tr" and text[:1] == "i" else text[:1].upper()
    return first + text[1:]


def has_final_consonant(text: str) -> bool:
    """True if Korean text, read aloud, ends in a consonant."""
    last = next((char for char in reversed(text) if char.isalnum()), "")
    if "가" <= last <= "힣":
        return (ord(last) - ord("가")) % 28 > 0
    if last.isdigit():
        return last in "013678"
    return last.lower() in set("bcdfgklmnpqrtvxz")
