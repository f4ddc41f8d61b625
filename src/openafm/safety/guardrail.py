"""What a guardrail is, and how one watches a response that is still being written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

WINDOW = 400  # characters that are looked at together; longer than anything a blocklist pairs up
STRIDE = 64  # new characters after which the window is looked at again


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


class Guardrail(Protocol):
    """Decides about texts. Called from any thread, for each request, so it holds no state of one."""

    def check_input(self, text: str) -> Verdict:
        """Whether a prompt may be answered; `text` is all of it."""

    def check_output(self, window: str) -> Verdict:
        """Whether a response may go on; `window` is its latest part, at most `WINDOW` characters and the newest piece."""


class OutputWatch:
    """One response under a guardrail, checked in windows that overlap while it streams.

    What is pushed may be shown before it was checked: a violation is reported at the latest `STRIDE` characters after it was
    complete, or by `finish`. A match of up to `WINDOW - STRIDE` characters is found however the pieces cut it.
    """

    def __init__(self, guardrail: Guardrail) -> None:
        self._guardrail = guardrail
        self._window = ""
        self._num_unchecked = 0  # characters at the end of the window

    def push(self, piece: str) -> Verdict:
        """The verdict on the response so far, now that `piece` was added to it."""
        self._window += piece
        self._num_unchecked += len(piece)
        return self._check() if self._num_unchecked >= STRIDE else Allowed()

    def finish(self) -> Verdict:
        """The verdict on the whole response."""
        return self._check() if self._num_unchecked else Allowed()

    def _check(self) -> Verdict:
        verdict = self._guardrail.check_output(self._window)
        self._window, self._num_unchecked = self._window[-WINDOW:], 0
        return verdict
