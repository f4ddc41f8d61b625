"""The output monitor: split phrases are found in time, without false positives."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.safety.guardrail import STRIDE, WINDOW, Allowed, Guardrail, OutputMonitor, Verdict, Violation


@dataclass
class Forbidden:
    """A guardrail against one phrase that records its windows."""

    phrase: str
    windows: list[str] = field(default_factory=list)

    def check_input(self, text: str) -> Verdict:
        return self.check_output(text)

    def check_output(self, window: str) -> Verdict:
        self.windows.append(window)
        found = re.search(rf"\b{re.escape(self.phrase)}\b", window)
        return Violation(category="test", reason=self.phrase) if found else Allowed()


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def first_violation(guardrail: Guardrail, pieces: list[str]) -> int | None:
    """Return the number of characters pushed before the violation was reported; None: never reported."""
    monitor = OutputMonitor(guardrail)
    pushed = 0
    for piece in pieces:
        pushed += len(piece)
        if isinstance(monitor.push(piece), Violation):
            return pushed
    return pushed if isinstance(monitor.finish(), Violation) else None


fillers = st.text("abc de.", max_size=900)


@settings(max_examples=100, deadline=None)
@given(before=fillers, after=fillers, cuts=st.lists(st.integers(0, 2000), max_size=40))
def test_a_split_phrase_is_found(before: str, after: str, cuts: list[int]) -> None:
    text = f"{before} red fox {after}"
    pieces = pieces_of(text, cuts)
    reported = first_violation(Forbidden("red fox"), pieces)
    assert reported is not None
    complete = len(before) + len(" red fox ")
    longest_piece = max(map(len, pieces))
    assert reported <= complete + STRIDE + 24 + longest_piece


@settings(max_examples=100, deadline=None)
@given(fillers, fillers, st.lists(st.integers(0, 2000), max_size=40))
def test_parts_of_words_do_not_match(before: str, after: str, cuts: list[int]) -> None:
    text = f"{before} preparered foxes {after}"
    assert first_violation(Forbidden("red fox"), pieces_of(text, cuts)) is None


def test_single_characters_are_checked_once_per_stride() -> None:
    guardrail = Forbidden("red fox")
    assert first_violation(guardrail, list("the cat sat on the mat. " * 100)) is None
    assert len(guardrail.windows) <= 2400 // (STRIDE - 24) + 1
    assert max(map(len, guardrail.windows)) <= WINDOW + STRIDE


def test_a_script_without_spaces_is_checked() -> None:
    guardrail = Forbidden("x")
    monitor = OutputMonitor(guardrail)
    for _ in range(300):
        monitor.push("猫")
    monitor.finish()
    assert sum(map(len, guardrail.windows)) > 300


def test_an_empty_response_is_not_checked() -> None:
    guardrail = Forbidden("x")
    assert OutputMonitor(guardrail).finish() == Allowed()
    assert guardrail.windows == []


class Holding(Forbidden):
    releases_after_check = True


@settings(max_examples=100, deadline=None)
@given(fillers, st.lists(st.integers(0, 2000), max_size=40))
def test_text_is_released_after_its_check(text: str, cuts: list[int]) -> None:
    guardrail = Holding("red fox")
    monitor, released = OutputMonitor(guardrail), ""
    for piece in pieces_of(text, cuts):
        assert monitor.push(piece) == Allowed()
        released += monitor.release()
        checked = guardrail.windows[-1] if guardrail.windows else ""
        assert not released or released.endswith(checked[-20:])
    assert monitor.finish() == Allowed()
    assert released + monitor.release() == text


def test_a_violation_is_never_released() -> None:
    monitor, released = OutputMonitor(Holding("red fox")), ""
    for piece in "the quick red fox jumps. " * 4:
        if isinstance(monitor.push(piece), Violation):
            break
        released += monitor.release()
    assert "red fox" not in released


def test_other_guardrails_release_at_once() -> None:
    monitor = OutputMonitor(Forbidden("red fox"))
    monitor.push("the")
    assert monitor.release() == "the"
    assert monitor.release() == ""
