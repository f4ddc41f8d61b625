"""The text of an answer, released once the guardrail of the server allows it, with the scores of its tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from openafm.runtime.decoding.logits import TokenScore
from openafm.safety.guardrail import Allowed, Guardrail, OutputMonitor


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of the answer with its bytes, its log probability and the likeliest alternatives."""

    data: bytes
    score: TokenScore
    top: tuple[tuple[bytes, TokenScore], ...]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next characters of the answer, with the tokens since the last delta if scores are computed."""

    text: str
    tokens: tuple[ScoredToken, ...] = ()


class CheckedText:
    """Release the text of one answer. A guardrail that holds text back sees each window before it is released.

    The scores of a token spell it, so they are released with its last character.

    Attributes:
        is_blocked: the guardrail blocked the answer; nothing more is released.
    """

    def __init__(self, guardrail: Guardrail | None) -> None:
        self._guardrail = guardrail
        self._monitor = None if guardrail is None else OutputMonitor(guardrail)
        self._num_decoded = self._num_released = 0  # characters
        self._textless: list[ScoredToken] = []  # tokens whose text has not begun, such as parts of a character
        self._scored: deque[tuple[int, ScoredToken]] = deque()  # with the number of characters at their end
        self.is_blocked = False

    def add_token(self, scored: ScoredToken | None, text: str) -> None:
        """Record the scores of the next token, if there are any, and the characters that it completes."""
        if scored is not None:
            self._textless.append(scored)
        if text:
            self._num_decoded += len(text)
            self._scored += [(self._num_decoded, token) for token in self._textless]
            self._textless.clear()

    def push(self, text: str) -> TextDelta | None:
        """Append text and return what can be shown now."""
        if not text:
            return None
        if self._monitor is not None:
            if not isinstance(self._monitor.push(text), Allowed):
                self.is_blocked = True
                return None
            text = self._monitor.release()
        return self._delta(text)

    def finish(self, text: str = "", *, is_cut: bool = False) -> TextDelta | None:
        """Append the last text and return the rest. With `is_cut`, the tokens of text that is not shown are dropped."""
        if self._monitor is not None:
            if not all(isinstance(each, Allowed) for each in (self._monitor.push(text), self._monitor.finish())):
                self.is_blocked = True
                return None
            text = self._monitor.release()
        delta = self._delta(text) or TextDelta("")
        if not is_cut:
            delta = TextDelta(delta.text, (*delta.tokens, *(token for _, token in self._scored), *self._textless))
        return delta if delta.text or delta.tokens else None

    def check(self, texts: list[str]) -> None:
        """Check texts that are complete, such as the arguments of calls."""
        if self._guardrail is not None:
            for text in texts:
                monitor = OutputMonitor(self._guardrail)
                self.is_blocked |= not all(isinstance(each, Allowed) for each in (monitor.push(text), monitor.finish()))

    def _delta(self, text: str) -> TextDelta | None:
        if not text:
            return None
        self._num_released += len(text)
        tokens: list[ScoredToken] = []
        while self._scored and self._scored[0][0] <= self._num_released:
            tokens.append(self._scored.popleft()[1])
        return TextDelta(text, tuple(tokens))
