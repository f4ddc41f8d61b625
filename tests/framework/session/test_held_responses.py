"""Responses that a guardrail holds back: nothing unchecked is shown, and errors have the side, category and reason."""

from __future__ import annotations

import pytest
from scripted_models import ScriptedModel

import openafm as fm
from openafm.safety.guardrail import Allowed, Verdict, Violation


class Foxless:
    """Block the words red fox; hold responses back on request."""

    def __init__(self, releases_after_check: bool) -> None:
        self.releases_after_check = releases_after_check

    def check_input(self, text: str) -> Verdict:
        return Violation(category="animals", reason="a fox") if "red fox" in text else Allowed()

    check_output = check_input


def shown(text: str, guardrail: fm.Guardrail) -> tuple[str, fm.GuardrailViolationError | None]:
    """Return what a stream has shown, and its error."""
    last, session = "", fm.LanguageModelSession(model=ScriptedModel(text, guard=guardrail))
    try:
        for snapshot in session.stream_blocking("Hello"):
            last = snapshot.content
    except fm.GuardrailViolationError as error:
        return last, error
    return last, None


@pytest.mark.parametrize("holds", [True, False])
def test_a_violation_in_a_stream(holds: bool) -> None:
    text = "The quick brown dog jumps. " * 4 + "Then came a red fox. " + "It ran away. " * 10
    seen, error = shown(text, Foxless(holds))
    assert error is not None
    assert (error.side, error.category, error.reason) == ("response", "animals", "a fox")
    assert text.startswith(seen)
    assert ("red fox" in seen) is not holds


def test_a_held_response_is_complete_at_its_end() -> None:
    for text in ("", "Short.", "A longer answer without animals. " * 9):
        assert shown(text, Foxless(True)) == (text, None)


def test_the_side_of_a_blocked_prompt() -> None:
    session = fm.LanguageModelSession(model=ScriptedModel("no", guard=Foxless(True)))
    with pytest.raises(fm.GuardrailViolationError) as raised:
        session.respond_blocking("a red fox")
    assert raised.value.side == "prompt"
