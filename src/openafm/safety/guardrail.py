"""What a guardrail is, and how one watches a response that is still being written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

WINDOW = 400  # characters that are looked at together; longer than anything a blocklist pairs up
STRIDE = 64  # new characters after which the window is looked at again

# Longer runs of letters are text in a script without spaces, which may be cut anywhere.
_LAST_WORD = re.compile(r"(?<!\w)\w{1,24}$")
_FIRST_WORD = re.compile(r"\w{1,24}(?!\w)")


@dataclass(frozen=True)
class Allowed:
    """Nothing was found."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """The text may not be asked for or shown. `category` is what it is about, `reason` a sentence for the developer."""

    category: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The text may be asked for, but the model declines to answer it."""

    reason: str


Verdict: TypeAlias = Allowed | Violation | Refused


@runtime_checkable
class Guardrail(Protocol):
    """Decides about texts. Called from any thread, for each request, so it holds no state of one."""

    def check_input(self, text: str) -> Verdict:
        """Whether a prompt may be answered; `text` is all of it."""

    def check_output(self, window: str) -> Verdict:
        """Whether a response may go on; `window` is its latest part: `WINDOW` characters at most, and what is new."""


class OutputWatch:
    """One response under a guardrail, checked in windows that overlap while it streams.

    What is pushed may be shown before it was checked, and what was shown stays shown: a violation is reported at the latest
    `STRIDE` characters and one word after it was complete, or by `finish`. One of up to `WINDOW` characters is found however
    the pieces cut it. Windows begin and end between words, so that no part of a word is taken for one.
    """

    def __init__(self, guardrail: Guardrail) -> None:
        self._guardrail = guardrail
        self._text = ""  # what may still matter
        self._num_checked = 0  # characters at its beginning

    def push(self, piece: str) -> Verdict:
        """The verdict on the response so far, now that `piece` was added to it."""
        self._text += piece
        if len(self._text) - self._num_checked < STRIDE:
            return Allowed()
        last_word = _LAST_WORD.search(self._text)
        return self._check(len(self._text) if last_word is None else last_word.start())

    def finish(self) -> Verdict:
        """The verdict on the whole response."""
        return self._check(len(self._text)) if len(self._text) > self._num_checked else Allowed()

    def _check(self, end: int) -> Verdict:
        verdict = self._guardrail.check_output(self._text[:end])
        start = max(end - WINDOW, 0)
        if start and (word := _FIRST_WORD.match(self._text, start - 1)):
            start = word.end()
        self._text, self._num_checked = self._text[start:], end - start
        return verdict
