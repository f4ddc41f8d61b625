"""Guardrails: the protocol, its verdicts, and the check of a streamed response."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias, runtime_checkable

from openafm.safety.words import DIACRITICS, INVISIBLE

WINDOW = 400  # compacted characters that one check sees; longer than any rule of the blocklist spans
STRIDE = 64  # new characters between checks

# Longer runs of letters belong to a script without spaces and may be cut anywhere.
_LAST_WORD = re.compile(r"(?<!\w)\w{1,24}$")
_FIRST_WORD = re.compile(r"\w{1,24}(?!\w)")

_MOST_EQUAL = 8  # longer runs are cut: no term has more equal letters or separators in a row
_MARKS = re.compile(f"({DIACRITICS.pattern}){DIACRITICS.pattern}+")
_EQUAL = re.compile(rf"(.)\1{{{_MOST_EQUAL},}}", re.S)
_SEPARATORS = re.compile(rf"[\W_]{{{_MOST_EQUAL + 1},}}")
_PARAGRAPH = re.compile(r"\n\s*\n")
_BASE = re.compile(f"(?!{DIACRITICS.pattern}).", re.S)


class SystemLanguageModelGuardrails(IntEnum):
    """Strictness of a model's guardrails. Names and numbers are Apple's.

    DEFAULT checks prompts and responses. PERMISSIVE_CONTENT_TRANSFORMATIONS leaves plain text unchecked, for apps that
    rewrite or summarize text of their users; guided requests are still checked.
    """

    DEFAULT = 0
    PERMISSIVE_CONTENT_TRANSFORMATIONS = 1


@dataclass(frozen=True)
class Allowed:
    """The text passes."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """The text is blocked. `category` is its topic, `reason` a sentence for the developer."""

    category: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The prompt is accepted, but the model refuses to answer it."""

    reason: str


Verdict: TypeAlias = Allowed | Violation | Refused


@runtime_checkable
class Guardrail(Protocol):
    """Check texts. Called from any thread for every request, so implementations keep no state of a request."""

    def check_input(self, text: str) -> Verdict:
        """Check a complete prompt."""

    def check_output(self, window: str) -> Verdict:
        """Check the end of a response: at most `WINDOW` characters that were checked before, compacted, and all new ones."""


@runtime_checkable
class HoldingGuardrail(Guardrail, Protocol):
    """A guardrail for which a streamed response can be held back until it is checked."""

    releases_after_check: bool


class CombinedGuardrail:
    """Ask several guardrails in order; the first verdict other than `Allowed` counts.

    Responses are held back if one of them asks for it.
    """

    def __init__(self, *guardrails: Guardrail) -> None:
        self._guardrails = guardrails
        self.releases_after_check = any(isinstance(g, HoldingGuardrail) and g.releases_after_check for g in guardrails)

    def check_input(self, text: str) -> Verdict:
        verdicts = (guardrail.check_input(text) for guardrail in self._guardrails)
        return next((verdict for verdict in verdicts if not isinstance(verdict, Allowed)), Allowed())

    def check_output(self, window: str) -> Verdict:
        verdicts = (guardrail.check_output(window) for guardrail in self._guardrails)
        return next((verdict for verdict in verdicts if not isinstance(verdict, Allowed)), Allowed())


class OutputMonitor:
    """Check one streamed response in overlapping windows.

    `release` returns the text that may be shown: all of it, or the checked text if a `HoldingGuardrail` asks for that. A
    violation of up to `WINDOW` characters is reported at most `STRIDE` characters and one word after its end, or by
    `finish`, independently of how the text is split. Windows start and end between words: no rule matches part of a word.

    Checked text is compacted, so that padding does not push the start of a term out of the window: without invisible
    characters, with one diacritic a letter, and with at most eight equal characters or separators in a row.
    """

    def __init__(self, guardrail: Guardrail) -> None:
        self._guardrail = guardrail
        self._text = ""  # the latest text, of which the first `_num_checked` characters are checked
        self._num_checked = 0
        self._unreleased = ""
        self._num_releasable = 0
        self._holds = isinstance(guardrail, HoldingGuardrail) and guardrail.releases_after_check

    def push(self, text: str) -> Verdict:
        """Append text; return the verdict on the response so far."""
        self._text += text
        self._unreleased += text
        if len(self._text) - self._num_checked < STRIDE:
            return Allowed()
        last_word = _LAST_WORD.search(self._text)
        return self._check(len(self._text) if last_word is None else last_word.start())

    def finish(self) -> Verdict:
        """Return the verdict on the complete response."""
        return self._check(len(self._text)) if len(self._text) > self._num_checked else Allowed()

    def release(self) -> str:
        """Return the text that may be shown and was not returned before. Call it only after a verdict of `Allowed`."""
        end = self._num_releasable if self._holds else len(self._unreleased)
        released, self._unreleased, self._num_releasable = self._unreleased[:end], self._unreleased[end:], 0
        return released

    def _check(self, end: int) -> Verdict:
        verdict = self._guardrail.check_output(self._text[:end])
        self._num_releasable += end - self._num_checked
        checked = _compacted(self._text[:end])
        start = _window_start(checked)
        if start and (word := _FIRST_WORD.match(checked, start - 1)):
            start = word.end()
        self._text, self._num_checked = checked[start:] + self._text[end:], len(checked) - start
        return verdict


def _window_start(text: str) -> int:
    """Return where the last `WINDOW` characters start, diacritics not counted."""
    if not DIACRITICS.search(text):
        return max(len(text) - WINDOW, 0)
    bases = [match.start() for match in _BASE.finditer(text)]
    return bases[-WINDOW] if len(bases) > WINDOW else 0


def _compacted(text: str) -> str:
    """Return a text without padding that guardrails ignore."""
    text = INVISIBLE.sub("", text)
    if not text.isascii():
        text = _MARKS.sub(r"\1", text)
    return _SEPARATORS.sub(_cut, _EQUAL.sub(lambda match: match[1] * _MOST_EQUAL, text))


def _cut(match: re.Match[str]) -> str:
    """Return the first separators of a run, and the end of a paragraph if there is one."""
    return match[0][:_MOST_EQUAL] + ("\n\n" if _PARAGRAPH.search(match[0]) else "")
