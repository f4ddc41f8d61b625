"""Stages of synthesis: what each keeps and drops, every prompt counted, files with line numbers in errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from openafm.core.config import ConfigError, from_dict, to_dict
from openafm.data.synthesis.base import Draft, Dropped, Functions, SynthesisError, SynthesisStageConfig
from openafm.data.synthesis.running import SynthesisConfig, synthesize
from openafm.data.synthesis.verification import (
    ExecutionConfig,
    GroundTruthConfig,
    MajorityVoteConfig,
    ModelFilterConfig,
    SameLanguageConfig,
)
from openafm.data.synthesis.writing import ChainOfThoughtConfig, RespondConfig, UnanswerableConfig, last_question
from openafm.sandbox import sandbox_reason
from openafm.tokenizer.conversation import Conversation, ConversationError, UserTurn


def draft(*responses: str, question: str = "2 + 2?", truth: Mapping[str, Any] | None = None, language: str = "") -> Draft:
    prompt = Conversation(turns=(UserTurn(text=question),), language=language)
    return Draft(prompt=prompt, truth=truth or {}, responses=responses)


def last_word(text: str) -> str:
    return text.split()[-1] if text.split() else ""


def applied(stage: SynthesisStageConfig, before: Draft, **functions: Any) -> Draft | Dropped:
    found = stage.build(Functions(**functions)).apply(before)
    if isinstance(found, Dropped):
        assert found.reason in stage.REASONS
    return found


def responses(found: Draft | Dropped) -> tuple[str, ...]:
    assert isinstance(found, Draft), found
    return found.responses


def test_responses_are_asked_for_as_often_as_configured() -> None:
    found = applied(RespondConfig(count=3), draft(), ask=lambda prompt, number: f" {last_question(prompt)} {number} ")
    assert responses(found) == ("2 + 2? 0", "2 + 2? 1", "2 + 2? 2")
    assert applied(RespondConfig(), draft(), ask=lambda prompt, number: " ") == Dropped(reason="no_response")


def test_ground_truth_keeps_right_responses() -> None:
    before = draft("is 4", "is 5", truth={"answer": "4"})
    is_correct = lambda text, truth: last_word(text) == truth["answer"]  # noqa: E731
    assert responses(applied(GroundTruthConfig(), before, is_correct=is_correct)) == ("is 4",)
    wrong = draft("is 5", truth={"answer": "4"})
    assert applied(GroundTruthConfig(), wrong, is_correct=is_correct) == Dropped(reason="wrong")


def test_votes_need_a_majority_without_a_tie() -> None:
    stage = MajorityVoteConfig(min_share=0.5, min_votes=3)

    def vote(*texts: str) -> Draft | Dropped:
        return applied(stage, draft(*texts), final_answer=last_word)

    assert responses(vote("a 4", "b 4", "c 5")) == ("a 4", "b 4")
    assert vote("a 4", "b 5", "c 6", "d 4", "e 7") == Dropped(reason="no_majority", detail="2 of 5 responses agree")
    assert vote("a 4", "b 5", "c 4", "d 5") == Dropped(reason="no_majority", detail="2 of 4 responses agree")
    assert vote("a 4", "b 4") == Dropped(reason="few_votes", detail="2 responses have an answer")


def test_a_model_keeps_the_best_responses() -> None:
    def score(conversation: Conversation) -> float:
        text = conversation.turns[-1].text
        return float(len(text))

    found = applied(ModelFilterConfig(min_score=2, keep=2), draft("a", "bb", "cccc", "ddd", "cccc"), score=score)
    assert responses(found) == ("cccc", "ddd")
    assert applied(ModelFilterConfig(min_score=9), draft("a", "bb"), score=score) == Dropped(
        reason="low_score", detail="the best score is 2"
    )


def test_output_follows_the_language_of_the_prompt() -> None:
    german = "Heute scheint die Sonne über den Bergen, und wir gehen mit den Kindern wandern."
    english = "The sun shines over the mountains today, and we go hiking with the children."
    assert responses(applied(SameLanguageConfig(), draft(english, german, "42", question=german))) == (german, "42")
    assert responses(applied(SameLanguageConfig(), draft(english, german, language="en-GB"))) == (english,)
    assert applied(SameLanguageConfig(), draft(english, language="de")) == Dropped(reason="other_language", detail="de")


@pytest.mark.skipif(bool(sandbox_reason()), reason=sandbox_reason() or "works")
def test_execution_keeps_code_that_passes_its_tests() -> None:
    right, wrong = "```python\ndef f(x): return 2 * x\n```", "```python\ndef f(x): return x\n```"
    before = draft(right, wrong, "no code here", truth={"tests": "assert f(2) == 4"})
    assert responses(applied(ExecutionConfig(), before)) == (right,)
    assert applied(ExecutionConfig(), draft(wrong, truth=before.truth)) == Dropped(reason="failed_tests")
    with pytest.raises(SynthesisError, match="needs 'tests'"):
        applied(ExecutionConfig(), draft(right))


def test_chains_of_thought_end_with_the_same_answer() -> None:
    def ask(prompt: Conversation, number: int) -> str:
        assert "2 + 2?" in last_question(prompt)
        return "two and two are 4" if number == 0 else "surely it is 5"

    found = applied(ChainOfThoughtConfig(), draft("4", "= 4"), ask=ask, final_answer=last_word)
    assert responses(found) == ("two and two are 4",)
    assert applied(ChainOfThoughtConfig(), draft("6"), ask=ask, final_answer=last_word) == Dropped(reason="other_answer")


def test_unanswerable_questions_are_checked_and_refused_in_the_language() -> None:
    def ask(reply: str) -> Any:
        return lambda prompt, number: reply if "Reply with yes or no" in last_question(prompt) else "Wer war dort?"

    found = applied(UnanswerableConfig(), draft("x", question="Es regnet.", language="de"), ask=ask("No."))
    assert responses(found) == ("Das steht nicht im Text.",)
    assert isinstance(found, Draft)
    assert last_question(found.prompt) == "Es regnet.\n\nWer war dort?"
    assert applied(UnanswerableConfig(), draft("x"), ask=ask("Yes")) == Dropped(reason="answerable", detail="Wer war dort?")
    assert applied(UnanswerableConfig(), draft("x", language="xx"), ask=ask("no")) == Dropped(reason="language", detail="xx")


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def line(question: str, answer: str | None = None, **rest: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages + ([] if answer is None else [{"role": "assistant", "content": answer}]), **rest}


def test_every_prompt_is_kept_or_counted(tmp_path: Path) -> None:
    def is_correct(text: str, truth: Mapping[str, Any]) -> bool:
        if text == "broken":
            raise RuntimeError("on purpose")
        return text == truth.get("answer")

    lines = [line(f"q{i}", "right" if i % 3 else "wrong", truth={"answer": "right"}, language="en") for i in range(30)]
    prompts = write(tmp_path / "in.jsonl", *lines, line("q", "broken"), line("q", "en", truth={"answer": "en"}))
    config = SynthesisConfig(stages=(GroundTruthConfig(), ModelFilterConfig(min_score=3)), num_requests=2)
    assert from_dict(SynthesisConfig, json.loads(json.dumps(to_dict(config)))) == config
    functions = Functions(is_correct=is_correct, score=lambda conversation: float(len(conversation.turns[-1].text)))
    report = synthesize(config, prompts, tmp_path / "out.jsonl", functions)
    assert (report.num_prompts, report.num_kept, report.num_written) == (32, 20, 20)
    assert report.dropped == {"GroundTruth/wrong": 10, "GroundTruth/error": 1, "ModelFilter/low_score": 1}
    assert report.errors == {"GroundTruth": "RuntimeError: on purpose"}
    written = [json.loads(each) for each in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["messages"][0]["content"] for each in written] == [f"q{i}" for i in range(30) if i % 3]
    assert written[0] == line("q1", "right", language="en")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", r"in\.jsonl:2: "),
        ("[]", r"in\.jsonl:2: expected an object"),
        ({"messages": []}, r"in\.jsonl:2: a conversation needs"),
        (line("q", truth="x"), r"in\.jsonl:2: 'truth' is an object"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', r"in\.jsonl:2: .*surrogates"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, r"in\.jsonl:2: the prompt ends with a turn"),
    ],
)
def test_lines_that_are_no_prompts_leave_no_output(tmp_path: Path, bad: Any, message: str) -> None:
    prompts = write(tmp_path / "in.jsonl", line("q"), bad)
    config = SynthesisConfig(stages=(RespondConfig(),))
    with pytest.raises(ConversationError, match=message):
        synthesize(config, prompts, tmp_path / "out.jsonl", Functions(ask=lambda prompt, number: pytest.fail("asked")))
    assert not (tmp_path / "out.jsonl").exists()


def test_missing_functions_and_wrong_values_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SynthesisError, match="GroundTruthConfig needs the function 'is_correct'"):
        synthesize(SynthesisConfig(stages=(GroundTruthConfig(),)), tmp_path, tmp_path / "out", Functions())
    with pytest.raises(ConfigError, match="stages must not be empty"):
        SynthesisConfig(stages=())
    for stage in (RespondConfig, MajorityVoteConfig):
        with pytest.raises(ConfigError):
            stage(**{"count": 0} if stage is RespondConfig else {"min_share": 0})


def test_a_response_that_has_no_utf8_form_costs_one_prompt(tmp_path: Path) -> None:
    prompts = write(tmp_path / "in.jsonl", line("a"), line("b"))
    answers = {"a": "half \ud800", "b": "whole"}
    functions = Functions(ask=lambda prompt, number: answers[last_question(prompt)])
    report = synthesize(SynthesisConfig(stages=(RespondConfig(),)), prompts, tmp_path / "out.jsonl", functions)
    assert (report.num_kept, report.dropped) == (1, {"Respond/error": 1})
