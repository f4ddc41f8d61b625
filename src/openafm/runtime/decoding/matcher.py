"""The state of one answer under its grammar: allowed tokens, forced tokens, and the end that a token limit forces.

Where the grammar allows only one text, its tokens are forced: the mask allows the single token that the tokenizer would
produce, although others spell the same text. Answers are therefore the same whether forced tokens are fed as drafts or
sampled one by one, and they are tokenized like training data.

Shapes: V vocabulary of the model.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import OpenAFMError, UsageError
from openafm.runtime.decoding.closing import WATCHED, Closer, DueEnd, KnownEnd
from openafm.runtime.decoding.text_grammar import AnyMatcher

_MOST_FIRST_ENDS = 64  # stored for one grammar
_OPENING = 32  # tokens: answers of a grammar differ after them

FirstEnds: TypeAlias = dict[tuple[tuple[int, ...], int], DueEnd]
"""Ends of answers by the tokens of their opening and the tokens left."""


class GrammarError(OpenAFMError):
    """The grammar engine failed while decoding, such as on a schema whose state grows too large."""


class IllegalTokenError(UsageError):
    """The grammar does not allow this token here, or a rollback exceeds the accepted tokens."""


class Matcher:
    """State of one answer under its grammar.

    llguidance never receives the stop token, because it cannot fully roll it back.

    Attributes:
        vocab_size: tokens of the tokenizer; a model may have more rows, which are never allowed.
    """

    def __init__(
        self,
        matcher: AnyMatcher,
        vocab_size: int,
        stop_token: int,
        closer: Closer | None = None,
        max_tokens: int | None = None,
        first_ends: FirstEnds | None = None,
    ) -> None:
        self._matcher, self.vocab_size, self._stop = matcher, vocab_size, stop_token
        self._closer, self._max_tokens = closer, max_tokens
        self._probes = () if closer is None else closer.probes
        self._first_ends = {} if first_ends is None else first_ends
        self._closed_at: int | None = None  # accepted tokens when the end was forced
        self._known_end: KnownEnd | None = None
        self._fits_from = self._fits_until = 0  # numbers of accepted tokens between which the end need not be computed
        self._accepted: list[int] = []
        self._bounds_V: NDArray[np.float32] | None = None  # inf for allowed tokens, else -inf; None: not computed
        self._forced = [self._compute_forced()]  # forced tokens at the start and after each accepted token

    @property
    def may_stop(self) -> bool:
        """True if the answer is complete: the stop token is allowed, or has been accepted."""
        return self._checked(self._matcher.is_accepting())

    @property
    def must_stop(self) -> bool:
        """True if only the stop token is allowed, or it has been accepted."""
        return self.has_stopped or self._checked(self._matcher.is_stopped())

    @property
    def has_stopped(self) -> bool:
        """True if the stop token has been accepted; no token is allowed after it."""
        return self._accepted[-1:] == [self._stop]

    @property
    def is_closed(self) -> bool:
        """True if the token limit ended the answer: its end is forced."""
        return self._closed_at is not None

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow, the stop token included; empty if there is a choice."""
        return self._forced[-1]

    def mask(self) -> NDArray[np.bool_]:
        """Return which tokens of the tokenizer are allowed, [V]."""
        if self._forced[-1] or self.has_stopped:
            mask_V = np.zeros(self.vocab_size, np.bool_)
            mask_V[list(self._forced[-1][:1])] = True
            return mask_V
        bits: bytes = self._checked(self._matcher.compute_bitmask())
        return np.unpackbits(np.frombuffer(bits, np.uint8), count=self.vocab_size, bitorder="little").view(np.bool_)

    def prepare(self) -> None:
        """Compute the mask that `apply` uses, such as during a step. Errors are raised by `apply`."""
        if self._bounds_V is not None or self._forced[-1] or self.has_stopped:
            return
        bits: bytes = self._matcher.compute_bitmask()
        if not self._matcher.is_error():
            bounds = _bounds_of_bytes().take(np.frombuffer(bits, np.uint8), axis=0)
            self._bounds_V = bounds.reshape(-1)[: self.vocab_size]

    def apply(self, logits_V: NDArray[np.float32]) -> None:
        """Set the logits of tokens that are not allowed to -inf, in place, including ids beyond the tokenizer's."""
        self.prepare()
        if self._bounds_V is None:
            self._checked(None)
            bounds_V = np.where(self.mask(), np.float32(np.inf), np.float32(-np.inf))
        else:
            bounds_V = self._bounds_V
        np.fmin(logits_V[: self.vocab_size], bounds_V, out=logits_V[: self.vocab_size])
        logits_V[self.vocab_size :] = -np.inf

    def accept(self, tokens: Sequence[int]) -> None:
        """Accept `tokens`, all or none of them.

        Raises:
            IllegalTokenError: one of them is not allowed at its place.
        """
        for done, token in enumerate(tokens):
            forced = self._forced[-1]
            if not self._is_legal(token, forced):
                self.rollback(done)
                raise IllegalTokenError(f"token {token} is not allowed by the grammar here")
            self._bounds_V = None
            if token != self._stop:
                self._checked(self._matcher.consume_token(token))
            self._accepted.append(token)
            self._forced.append(forced[1:] or self._compute_forced())

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens.

        Raises:
            IllegalTokenError: fewer have been accepted.
        """
        if not 0 <= num_tokens <= len(self._accepted):
            raise IllegalTokenError(f"cannot roll back {num_tokens} of {len(self._accepted)} accepted tokens")
        if num_tokens:
            self._bounds_V = None
            self._checked(self._matcher.rollback(num_tokens - self.has_stopped))
            del self._accepted[-num_tokens:], self._forced[-num_tokens:]
            if self._closed_at is not None and len(self._accepted) < self._closed_at:
                self._closed_at = None
            if len(self._accepted) < self._fits_from:
                self._fits_until, self._known_end = 0, None

    def fork(self) -> Matcher:
        """Return an independent copy."""
        fork = copy.copy(self)
        fork._matcher = self._matcher.deep_copy()
        fork._accepted, fork._forced = self._accepted.copy(), self._forced.copy()
        return fork

    def allows(self, token: int) -> bool:
        """Return the token's place in `mask`, without computing the others."""
        return self._is_legal(token, self._forced[-1])

    def _is_legal(self, token: int, forced: tuple[int, ...]) -> bool:
        if forced or self.has_stopped:
            return token in forced[:1]
        return bool(self._checked(self._matcher.validate_tokens([token])) == 1)

    def _compute_forced(self) -> tuple[int, ...]:
        if self.has_stopped:
            return ()
        if self._checked(self._matcher.is_stopped()):
            return (self._stop,)
        if self._has_choice():
            return self._due_end()
        forced = tuple(self._checked(self._matcher.compute_ff_tokens()))
        return forced or self._due_end()

    def _has_choice(self) -> bool:
        """Return True if texts with different first bytes may follow, as in a string. Twenty times as fast as the tokens
        that are forced; False is no answer.
        """
        valid = (self._matcher.validate_tokens([token]) == 1 for token in self._probes)
        return bool(self._checked(self._probes and all(valid)))

    def _due_end(self) -> tuple[int, ...]:
        """Return the end of the answer if it must begin here for the tokens left to suffice, else nothing."""
        closer, most = self._closer, self._max_tokens
        if closer is None or most is None:
            return ()
        num_left = most - len(self._accepted)
        count = len(self._accepted)
        if not 0 < num_left <= WATCHED or count < self._fits_until or self.may_stop:
            return ()
        end = self._first_end(closer, num_left) or closer.due_end(self._matcher, self._accepted, num_left, self._known_end)
        self._known_end = end.known
        self._fits_from, self._fits_until = count, count + end.num_safe
        if not end.tokens:
            return ()
        self._closed_at = count
        return (*end.tokens, self._stop)

    def _first_end(self, closer: Closer, num_left: int) -> DueEnd | None:
        """Return the end from the opening of an answer, which all answers of a grammar share; None after the opening."""
        if self._known_end is not None or len(self._accepted) > _OPENING:
            return None
        key = tuple(self._accepted), num_left
        if (end := self._first_ends.get(key)) is None:
            if len(self._first_ends) >= _MOST_FIRST_ENDS:
                self._first_ends.clear()
            end = self._first_ends[key] = closer.due_end(self._matcher, self._accepted, num_left)
        return end

    def _checked(self, result: Any) -> Any:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar engine failed: {first_line(self._matcher.get_error())}")
        return result


@functools.cache
def _bounds_of_bytes() -> NDArray[np.float32]:
    """Return the bounds of the eight tokens of each mask byte, [256, 8]; much faster than boolean indexing."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.where(bits, np.float32(np.inf), np.float32(-np.inf))


def first_line(message: str) -> str:
    """Return the engine's message without the position in the grammar around the schema."""
    line = message.splitlines()[0] if message else "no reason given"
    return re.sub(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?", "", line)
