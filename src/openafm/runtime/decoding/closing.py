"""The end of an incomplete JSON answer, so that an answer that reaches its token limit still satisfies its schema.

It is built greedily: outside of strings it closes objects and lists first, inside it closes the string; where the
grammar requires more, it writes the first character that the grammar allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from openafm.tokenizer.bpe import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

SLACK = 16
"""Tokens that remain below the limit: one token may close a string, add an item and begin it."""

WATCHED = 256
"""Tokens below the limit from which the end is computed."""

_QUOTE = re.compile(rb'\\.|"', re.S)
_OUTSIDE = b'}],"0123456789ntf[{-.'
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
_INSIDE = b'"' + bytes(sorted(_PLAIN, key=lambda byte: (chr(byte).isalnum(), byte)))


@dataclass(frozen=True)
class DueEnd:
    """The end of an answer that must begin now; empty if none must before `num_safe` more tokens have been accepted."""

    tokens: list[int]
    num_safe: int = 0


class Closer:
    """Computes ends of answers in the tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = [tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)]
        by_byte = {text[0]: id for id, text in enumerate(self._bytes) if len(text) == 1}
        self._outside = tuple(by_byte[byte] for byte in _OUTSIDE if byte in by_byte)
        self._inside = tuple(by_byte[byte] for byte in _INSIDE if byte in by_byte)

    def due_end(self, matcher: LLMatcher, accepted: Sequence[int], most: int) -> DueEnd:
        """Return the end of the answer after `accepted` if it must begin here for `most` tokens to suffice.

        It must if one more item of the innermost open list or object might not fit. `matcher` is not changed. A token is
        taken to use one of the tokens left and to lengthen the end by at most `SLACK`.
        """
        slack = min(SLACK, (most + len(accepted)) // 4)
        longer = self._end(matcher, accepted, most - slack, adds_item=True)
        if longer is not None:
            return DueEnd([], num_safe=1 + (most - slack - len(longer)) // (1 + SLACK))
        return DueEnd(self._end(matcher, accepted, most, adds_item=False) or [], num_safe=1)

    def _end(self, matcher: LLMatcher, accepted: Sequence[int], most: int, *, adds_item: bool) -> list[int] | None:
        """Return tokens that complete the answer, at most `most`; None if more would be needed.

        With `adds_item` the first list or object that could be closed gets one more item.
        """
        copy, tokens = matcher.deep_copy(), list[int]()
        is_inside = self._is_inside(accepted, is_inside=False)
        while not copy.is_error():
            if copy.is_accepting() or copy.is_stopped():
                return tokens
            step = copy.compute_ff_tokens()
            if not step:
                step = self._next(copy, self._inside if is_inside else self._outside)
                if adds_item and not is_inside and self._bytes[step[0]] in (b"}", b"]"):
                    step, adds_item = self._next(copy, self._outside[2:]), False
            if len(tokens) + len(step) > most or not step:
                return None
            copy.consume_tokens(step)
            tokens += step
            is_inside = self._is_inside(step, is_inside)
        return None

    def _next(self, matcher: LLMatcher, candidates: Sequence[int]) -> list[int]:
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
