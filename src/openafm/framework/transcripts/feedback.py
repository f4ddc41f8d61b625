"""Feedback on a response, as JSON for the training of the model (report 9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from openafm.framework.schema.content import GeneratedContent
from openafm.framework.transcripts.transcript import ResponseEntry, Transcript, TranscriptEntry
from openafm.tokenizer.conversation import AssistantTurn
from openafm.tokenizer.schema_text import compact_json

VERSION = 1
_TYPE = "openafm.LanguageModelFeedback"


class Sentiment(StrEnum):
    """The overall rating of a response."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    NEUTRAL = "neutral"


class FeedbackCategory(StrEnum):
    """Categories of issues, with Apple's names."""

    UNHELPFUL = "unhelpful"
    TOO_VERBOSE = "tooVerbose"
    DID_NOT_FOLLOW_INSTRUCTIONS = "didNotFollowInstructions"
    INCORRECT = "incorrect"
    STEREOTYPE_OR_BIAS = "stereotypeOrBias"
    SUGGESTIVE_OR_SEXUAL = "suggestiveOrSexual"
    VULGAR_OR_OFFENSIVE = "vulgarOrOffensive"
    TRIGGERED_GUARDRAIL_UNEXPECTEDLY = "triggeredGuardrailUnexpectedly"


@dataclass(frozen=True)
class FeedbackIssue:
    """One issue of the last response, with an optional explanation."""

    category: FeedbackCategory
    explanation: str | None = None

    def to_dict(self) -> dict[str, str]:
        explanation = {} if self.explanation is None else {"explanation": self.explanation}
        return {"category": FeedbackCategory(self.category).value} | explanation


DesiredOutput: TypeAlias = str | GeneratedContent | TranscriptEntry


def feedback_attachment(
    transcript: Transcript,
    *,
    sentiment: Sentiment | None = None,
    issues: Iterable[FeedbackIssue] = (),
    desired_output: DesiredOutput | None = None,
    comment: str | None = None,
) -> bytes:
    """Return feedback as UTF-8 JSON: the transcript in Apple's format, `sentiment`, `issues`, `desiredOutput`, a transcript
    entry with the response that the user wanted, and `comment`, text on the whole response.

    Raises:
        ValueError: the sentiment or a category is unknown.
    """
    feedback: dict[str, Any] = {"version": VERSION, "type": _TYPE}
    if sentiment is not None:
        feedback["sentiment"] = Sentiment(sentiment).value
    feedback["issues"] = [issue.to_dict() for issue in issues]
    if desired_output is not None:
        feedback["desiredOutput"] = _desired_entry(desired_output).to_dict()
    if comment:
        feedback["comment"] = comment
    return compact_json(feedback | {"transcript": transcript.as_dict()}).encode()


def _desired_entry(output: DesiredOutput) -> TranscriptEntry:
    match output:
        case TranscriptEntry():
            return output
        case GeneratedContent():
            return ResponseEntry(turn=AssistantTurn(text=output.to_json()), source="")
    return ResponseEntry(turn=AssistantTurn(text=output))
