"""Ways in which people type: all lower case, no full stop, a typo, an emoji."""

from __future__ import annotations

import random
from collections.abc import Sequence

from openafm.data.synthetic.rendering import Piece

_LOWER_CASE_SHARE, _NO_END_SHARE, _TYPO_SHARE, _EMOJI_SHARE, _UPPER_CASE_SHARE = 0.06, 0.08, 0.05, 0.04, 0.015
# Languages in which a message without capitals still reads well. German keeps them for nouns.
_MAY_LACK_CAPITALS = frozenset({"en", "da", "nl", "fr", "it", "nb", "pt", "es", "sv", "vi"})
_EMOJI = ("🙂", "😊", "👍", "🎉", "❤️", "😂", "🙏", "😅", "✨", "🤗", "😎", "👋")


def restyle(rng: random.Random, pieces: Sequence[Piece], language: str) -> list[Piece]:
    """The pieces in another style, in some cases. Fields change with the message, so that they stay copies of it."""
    styled = list(pieces)
    if language in _MAY_LACK_CAPITALS:
        draw = rng.random()
        if draw < _LOWER_CASE_SHARE:
            styled = [piece._replace(text=piece.text.lower()) for piece in styled]
        elif draw < _LOWER_CASE_SHARE + _UPPER_CASE_SHARE:
            styled = [piece._replace(text=piece.text.upper()) for piece in styled]
    if rng.random() < _NO_END_SHARE:
        styled[-1] = _changed(styled[-1], styled[-1].text.rstrip(".。!！"))
    if rng.random() < _TYPO_SHARE:
        styled = _with_typo(rng, styled)
    if rng.random() < _EMOJI_SHARE:
        styled.append(Piece(" " + rng.choice(_EMOJI)))
    return styled


def _changed(piece: Piece, text: str) -> Piece:
    return piece if piece.field or piece.is_slot else piece._replace(text=text)


def _with_typo(rng: random.Random, pieces: list[Piece]) -> list[Piece]:
    """Two letters of the plain text swapped, or one left out or doubled."""
    places = [
        (index, at)
        for index, piece in enumerate(pieces)
        if not piece.field and not piece.is_slot
        for at in range(1, len(piece.text) - 1)
        if piece.text[at - 1 : at + 2].isalpha()
    ]
    if not places:
        return pieces
    index, at = rng.choice(places)
    text = pieces[index].text
    letters = rng.choice((text[at + 1] + text[at], text[at + 1], text[at] * 2 + text[at + 1]))
    return [
        *pieces[:index],
        pieces[index]._replace(text=text[:at] + letters + text[at + 2 :]),
        *pieces[index + 1 :],
    ]
