"""The grammar of plain text: any UTF-8 text without special tokens.

It has the methods of llguidance's matcher that decoding uses, and allows the same tokens. llguidance would first read the
vocabulary, which takes half a second for 150,000 tokens.

Shapes: V vocabulary.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from openafm.tokenizer.bpe import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

AnyMatcher: TypeAlias = "LLMatcher | TextMatcher"
"""A matcher of llguidance, or that of plain text."""


class TextGrammar:
    """The tokens of a tokenizer that text may have after the bytes of an incomplete character."""

    def __init__(self, tokenizer: Tokenizer, stop_token: int) -> None:
        self._bytes, self._stop = tokenizer.vocabulary(), stop_token
        self._masks: dict[bytes, bytes] = {}  # by incomplete character: a few hundred

    def matcher(self) -> TextMatcher:
        return TextMatcher(self)

    def after(self, incomplete: bytes, token: int) -> bytes | None:
        """Return the incomplete character after a token, the stop token included; None if the token is not allowed."""
        if token == self._stop:
            return None if incomplete else b""
        text = self._bytes[token] if 0 <= token < len(self._bytes) else b""
        return _incomplete(incomplete + text) if text else None  # special tokens have no bytes

    def mask(self, incomplete: bytes) -> bytes:
        """Return a bit for each token, low bits first."""
        found = self._masks.get(incomplete)
        if found is None:
            tokens = self._continuing if incomplete else range(len(self._bytes))
            allowed_V = np.zeros(len(self._bytes), np.bool_)
            allowed_V[[token for token in tokens if self.after(incomplete, token) is not None]] = True
            found = self._masks[incomplete] = np.packbits(allowed_V, bitorder="little").tobytes()
        return found

    @functools.cached_property
    def _continuing(self) -> list[int]:
        """Tokens that begin inside of a character."""
        return [token for token, text in enumerate(self._bytes) if 0x80 <= (text or b"\0")[0] < 0xC0]


class TextMatcher:
    """State of one text."""

    def __init__(self, grammar: TextGrammar, states: Sequence[bytes] = (b"",)) -> None:
        self._grammar = grammar
        self._states = list(states)  # the incomplete character at the start and after each token

    def deep_copy(self) -> TextMatcher:
        return TextMatcher(self._grammar, self._states)

    def is_accepting(self) -> bool:
        return not self._states[-1]

    def is_stopped(self) -> bool:
        """Return False: text can always continue."""
        return False

    def is_error(self) -> bool:
        return False

    def get_error(self) -> str:
        return ""

    def compute_ff_tokens(self) -> list[int]:
        """Return no tokens: nothing is forced, also inside of a character."""
        return []

    def compute_bitmask(self) -> bytes:
        return self._grammar.mask(self._states[-1])

    def validate_tokens(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens are allowed, one after the other."""
        state: bytes | None = self._states[-1]
        for count, token in enumerate(tokens):
            state = self._grammar.after(state or b"", token)
            if state is None:
                return count
        return len(tokens)

    def consume_token(self, token: int) -> bool:
        """Accept a token; return whether it is allowed."""
        state = self._grammar.after(self._states[-1], token)
        if state is not None:
            self._states.append(state)
        return state is not None

    def consume_tokens(self, tokens: Sequence[int]) -> bool:
        return all(map(self.consume_token, tokens))

    def rollback(self, num_tokens: int) -> bool:
        del self._states[len(self._states) - num_tokens :]
        return True


def _incomplete(data: bytes) -> bytes | None:
    """Return the bytes of the incomplete character at the end; None if the data do not begin a UTF-8 text."""
    if data.isascii():
        return b""
    try:
        rest = data[codecs.utf_8_decode(data, "strict", False)[1] :]
    except UnicodeDecodeError:
        return None
    return None if rest[:1] == b"\xed" and rest[1:] >= b"\xa0" else rest  # a surrogate, which the decoder sees at its end
