"""Feedback: JSON with the transcript and the ratings."""

from __future__ import annotations

import json

import pytest

import openafm as fm
from openafm.framework.transcripts.feedback import FeedbackCategory, FeedbackIssue, Sentiment, feedback_attachment
from openafm.framework.transcripts.transcript import PromptEntry, ResponseEntry, Transcript
from openafm.tokenizer.conversation import AssistantTurn, UserTurn

TRANSCRIPT = Transcript(
    [
        PromptEntry(turn=UserTurn(text="Où ?"), options=fm.GenerationOptions()),
        ResponseEntry(turn=AssistantTurn(text="half a pair: \ud83d")),
    ]
)


def test_feedback_is_json_with_the_transcript() -> None:
    attachment = feedback_attachment(
        TRANSCRIPT,
        sentiment=Sentiment.NEGATIVE,
        issues=[FeedbackIssue(FeedbackCategory.TOO_VERBOSE), FeedbackIssue(FeedbackCategory.INCORRECT, "There.")],
        desired_output="Là.",
    )
    feedback = json.loads(attachment.decode("utf-8"))
    assert Transcript.parse(feedback["transcript"]).turns == TRANSCRIPT.turns
    assert feedback["sentiment"] == "negative"
    assert feedback["issues"] == [{"category": "tooVerbose"}, {"category": "incorrect", "explanation": "There."}]
    assert feedback["desiredOutput"]["contents"][0]["text"] == "Là."


def test_all_arguments_are_optional() -> None:
    feedback = json.loads(feedback_attachment(TRANSCRIPT))
    assert feedback["issues"] == []
    assert not feedback.keys() & {"sentiment", "desiredOutput"}


def test_the_desired_output_may_be_a_value_or_an_entry() -> None:
    value = json.loads(feedback_attachment(TRANSCRIPT, desired_output=fm.GeneratedContent({"a": 1})))
    assert value["desiredOutput"]["contents"][0]["structure"]["content"] == {"a": 1}
    entry = json.loads(feedback_attachment(TRANSCRIPT, desired_output=TRANSCRIPT[1]))
    assert entry["desiredOutput"] == TRANSCRIPT[1].to_dict()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="angry"):
        feedback_attachment(TRANSCRIPT, sentiment="angry")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rude"):
        feedback_attachment(TRANSCRIPT, issues=[FeedbackIssue("rude")])  # type: ignore[arg-type]
