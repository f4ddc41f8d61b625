"""The end of an incomplete JSON answer, so that an answer that reaches its token limit still satisfies its schema.

It is built greedily: outside of strings it closes objects and lists first, inside it closes the string; where the
grammar requires more, it writes the first character that the grammar allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from openafm.tokenizer.bpe import Tokenizer

if TYPE_CHECKING:
    from openafm.runtime.decoding.text_grammar import AnyMatcher

SLACK = 16
"""Tokens that remain below the limit: one token may close a string, add an item and begin it."""

WATCHED = 256
"""Tokens below the limit from which the end is computed."""

_QUOTE_BYTE, _BACKSLASH = b'"\\'
_QUOTE = re.compile(rb'\\.|"', re.S)
_OUTSIDE = b'}],"0123456789ntf[{-.'
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
_PROBES = b'a"'
_INSIDE = b'"' + bytes(sorted(_PLAIN, key=lambda byte: (chr(byte).isalnum(), byte)))


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """The tokens that complete an answer with one more item, as computed after `num_accepted` tokens.

    Attributes:
        item_at: index of the token that begins the item; the number of tokens if nothing takes one.
        is_inside: a JSON string was open before the end.
    """

    tokens: list[int]
    num_accepted: int
    item_at: int
    is_inside: bool


@dataclass(frozen=True, slots=True)
class DueEnd:
    """The end of an answer that must begin now; empty if none must before `num_safe` more tokens have been accepted."""

    tokens: list[int]
    num_safe: int = 0
    known: KnownEnd | None = None


class Closer:
    """Computes ends of answers in the tokens of one tokenizer.

    Attributes:
        probes: tokens that begin with different bytes and may all follow inside of a string.
    """

    def __init__(self, tokenizer: Tokenizer, stop_token: int) -> None:
        self._stop = stop_token
        self._bytes = tokenizer.vocabulary()
        by_byte = {text[0]: id for id, text in enumerate(self._bytes) if len(text) == 1}
        self._outside = tuple(by_byte[byte] for byte in _OUTSIDE if byte in by_byte)
        self._inside = tuple(by_byte[byte] for byte in _INSIDE if byte in by_byte)
        self.probes = tuple(by_byte[byte] for byte in _PROBES) if by_byte.keys() >= set(_PROBES) else ()

    def due_end(self, matcher: AnyMatcher, accepted: Sequence[int], most: int, known: KnownEnd | None = None) -> DueEnd:
        """Return the end of the answer after `accepted` if it must begin here for `most` tokens to suffice.

        It must if one more item of the innermost open list or object might not fit. `matcher` is not changed. A token is
        taken to use one of the tokens left and to lengthen the end by at most `SLACK`. `known` is that of an earlier result
        for the same answer; an end that still holds is not computed again.
        """
        slack = min(SLACK, (most + len(accepted)) // 4)
        longer = None if known is None else self._continued(known, matcher, accepted)
        if longer is None or len(longer.tokens) > most - slack:
            longer = self._end(matcher, accepted, most - slack, adds_item=True)
        if longer is not None:
            return DueEnd([], num_safe=1 + (most - slack - len(longer.tokens)) // (1 + SLACK), known=longer)
        end = self._end(matcher, accepted, most, adds_item=False)
        return DueEnd([] if end is None else end.tokens, num_safe=1)

    def _continued(self, known: KnownEnd, matcher: AnyMatcher, accepted: Sequence[int]) -> KnownEnd | None:
        """Return what is left of a known end after further tokens: its first bytes, with more text in strings.

        None if that need not be the end that `_end` computes.
        """
        new = accepted[known.num_accepted :]
        parts = [self._bytes[token] for token in known.tokens]
        aligned = _aligned(b"".join([self._bytes[token] for token in new]), b"".join(parts), known.is_inside)
        if aligned is None:
            return None
        num_bytes, is_inside = aligned
        ends = [0, *accumulate(map(len, parts))]
        if num_bytes not in ends:
            return None
        num_used = ends.index(num_bytes)
        left = known.tokens[num_used:]
        if num_used > known.item_at:
            return None
        if known.tokens[:num_used] != new and matcher.validate_tokens([*left, self._stop]) <= len(left):
            return None
        return KnownEnd(left, len(accepted), known.item_at - num_used, is_inside)

    def _end(self, matcher: AnyMatcher, accepted: Sequence[int], most: int, *, adds_item: bool) -> KnownEnd | None:
        """Return tokens that complete the answer, at most `most`; None if more would be needed.

        With `adds_item` the first list or object that could be closed gets one more item.
        """
        copy, tokens, item_at = matcher.deep_copy(), list[int](), -1
        is_inside = started_inside = self._is_inside(accepted, is_inside=False)
        while not copy.is_error():
            if copy.is_accepting() or copy.is_stopped():
                return KnownEnd(tokens, len(accepted), item_at if item_at >= 0 else len(tokens), started_inside)
            step = copy.compute_ff_tokens()
            if not step:
                step = self._next(copy, self._inside if is_inside else self._outside)
                if adds_item and not is_inside and self._bytes[step[0]] in (b"}", b"]"):
                    step, adds_item, item_at = self._next(copy, self._outside[2:]), False, len(tokens)
            if len(tokens) + len(step) > most or not step:
                return None
            copy.consume_tokens(step)
            tokens += step
            is_inside = self._is_inside(step, is_inside)
        return None

    def _next(self, matcher: AnyMatcher, candidates: Sequence[int]) -> list[int]:
        """Return the first candidate that is allowed, else the first allowed token."""
        for token in candidates:
            if matcher.validate_tokens([token]) == 1:
                return [token]
        bits: bytes = matcher.compute_bitmask()
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
        return allowed[:1].tolist()

    def _is_inside(self, tokens: Iterable[int], is_inside: bool) -> bool:
        """Return whether a JSON string is open after the tokens."""
        text = b"".join([self._bytes[token] for token in tokens])
        return is_inside ^ bool(_QUOTE.findall(text).count(b'"') % 2)


def _aligned(new: bytes, known: bytes, is_inside: bool) -> tuple[int, bool] | None:
    """Return how many bytes of `known` are in `new`, which may have more text where `known` closes a string, and whether a
    string is open after them. None if `new` differs otherwise.
    """
    place = 0
    for byte in new:
        if byte == _BACKSLASH or place == len(known):
            return None
        if byte == known[place]:
            is_inside ^= byte == _QUOTE_BYTE
            place += 1
        elif not is_inside or byte == _QUOTE_BYTE or known[place] != _QUOTE_BYTE:
            return None
    return place, is_inside
