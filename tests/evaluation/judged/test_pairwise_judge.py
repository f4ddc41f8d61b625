"""Judged comparison: verdicts, swapped places, nonsense, ties, length, human grades, prompts of locales."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from openafm.evaluation.harness.answerer import RecordedAnswerer
from openafm.evaluation.harness.cache import OutputCache
from openafm.evaluation.harness.task import Output, Prompt
from openafm.evaluation.judged.calibration import CalibrationError, calibrate, majority, read_grades
from openafm.evaluation.judged.judge import (
    Judge,
    JudgePromptError,
    Judgment,
    judge_all,
    own_prompts,
    prompt_of,
    read_verdict,
)
from openafm.evaluation.judged.summary import win_rate, win_rates


@pytest.fixture
def judge_of(tmp_path: Path) -> Iterator[Callable[[Callable[[str, str], str]], Judge]]:
    """Return a function that makes a judge of a function of the first and second answer."""
    caches: list[OutputCache] = []

    def make(verdict: Callable[[str, str], str]) -> Judge:
        def reply(prompt: Prompt) -> Output:
            first = prompt.text.partition("<answer_A>\n")[2].partition("\n</answer_A>")[0]
            second = prompt.text.partition("<answer_B>\n")[2].partition("\n</answer_B>")[0]
            return Output(text=verdict(first, second))

        caches.append(OutputCache(tmp_path / f"{len(caches)}.sqlite"))
        return Judge(answerer=RecordedAnswerer(reply), cache=caches[-1], prompts=own_prompts(None))

    yield make
    for cache in caches:
        cache.close()


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("A is better.\n[[A>B]]", "A>B"),
        ("[[ B >> A ]]", "B>>A"),
        ("[[A<<B]]", "B>>A"),
        ("[[A=B]]", "A=B"),
        ("First I thought [[A>B]], now [[A>>B]]", "A>>B"),
        ("[[A>B]] or [[B>A]]", None),
        ("[[A>A]]", None),
        ("The first one.", None),
        ("", None),
    ],
)
def test_verdicts(reply: str, verdict: str | None) -> None:
    assert read_verdict(reply) == verdict


def test_a_judge_that_prefers_a_place_gives_one_half(judge_of: Callable[..., Judge]) -> None:
    judgment = judge_of(lambda first, second: "[[A>B]]").compare("1", "en", "", "Say hi.", "hi", "hello")
    assert (judgment.score, judgment.is_consistent) == (0.5, False)
    judgment = judge_of(lambda first, second: "[[A>>B]]" if first == "hello" else "[[B>A]]").compare(
        "1", "en", "", "Say hi.", "hi", "hello"
    )
    assert (judgment.score, judgment.is_consistent) == (0.875, True)


def test_nonsense_is_counted_apart(judge_of: Callable[..., Judge]) -> None:
    asked: list[str] = []

    def verdict(first: str, second: str) -> str:
        asked.append(first)
        return "Both are nice. \ud800" if "bad" in (first, second) else "[[A=B]]"

    judge = judge_of(verdict)
    judgments = judge_all(judge, [("1", "en", "", "p", "bad", "b"), ("2", "de", "x", "p", "a", "b")], threads=1)
    assert [judgment.score for judgment in judgments] == [None, 0.5]
    assert asked.count("bad") == 2  # asked once more
    rates = win_rates(judgments)
    assert rates["language en"] is None
    rate = rates["all"]
    assert rate is not None
    assert (rate.num_nonsense, rate.ties, rate.rate.mean) == (1, 1.0, 0.5)
    assert "does not separate" in rate.notes[0]


def test_texts_cannot_fill_fields(judge_of: Callable[..., Judge]) -> None:
    seen: list[str] = []

    def verdict(first: str, second: str) -> str:
        seen.append(first)
        return "[[A=B]]"

    judge_of(verdict).compare("1", "en", "", "p", "{second}", "b")
    assert seen[0] == "{second}"


def test_length_control_removes_the_preference_for_length() -> None:
    generator = np.random.default_rng(0)
    judgments = []
    for number in range(400):
        difference = int(generator.integers(-200, 600))  # b is longer
        preferred = 1 / (1 + np.exp(-2.5 * np.tanh(difference / 230)))
        score = float(generator.random() < preferred)
        judgments.append(made(str(number), score, lengths=(1000, 1000 + difference)))
    rate = win_rate(judgments)
    assert rate is not None
    assert rate.rate.mean > 0.65
    assert rate.length_controlled == pytest.approx(0.5, abs=0.08)
    few = win_rate(judgments[:10])
    assert few is not None
    assert few.length_controlled is None


def made(id: str, score: float | None, lengths: tuple[int, int] = (1, 1)) -> Judgment:
    return Judgment(
        id=id, language="en", group="", score=score, verdicts=(), replies=(), is_consistent=True, lengths=lengths
    )


def test_calibration(tmp_path: Path) -> None:
    lines = [{"id": str(number), "preference": each} for number, each in enumerate(["a", "b", "b", "tie", "b"])]
    lines += [{"id": "0", "preference": "a"}, {"id": "1", "preference": "a"}, {"id": "99", "preference": "a"}]
    path = tmp_path / "grades.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    judgments = [made(str(number), score) for number, score in enumerate([0.0, 0.5, 1.0, 0.5, None])]
    found = calibrate(judgments, read_grades(path))
    assert (found.count, found.agreement, found.kappa) == (4, 1.0, 1.0)
    assert found.human_agreement == 0.5
    assert majority(["a", "b"]) == "tie"
    with pytest.raises(CalibrationError, match="no graded prompt was judged"):
        calibrate(judgments, {"other": ["a"]})
    path.write_text('{"id": "1", "preference": "left"}')
    with pytest.raises(CalibrationError, match="must be a, b or tie"):
        read_grades(path)


def test_prompts_of_locales(tmp_path: Path) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps({"pt": "{prompt} {first} {second} em português"}))
    prompts = own_prompts(path)
    assert prompt_of(prompts, "pt-BR").endswith("português")
    assert prompt_of(prompts, "ja") == prompts["en"]
    path.write_text(json.dumps({"pt": "{prompt} {first}"}))
    with pytest.raises(JudgePromptError, match=r"lacks \{second\}"):
        own_prompts(path)
    path.write_text("[]")
    with pytest.raises(JudgePromptError, match="JSON object"):
        own_prompts(path)
