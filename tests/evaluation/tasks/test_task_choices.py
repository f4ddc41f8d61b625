"""MMLU and MMMLU: prompts, letters in the languages and scripts of simple-evals, wrong data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.evaluation.harness.task import Output, TaskDataError
from openafm.evaluation.tasks.choices import MMLUConfig, MMLULikelihoodConfig, MMMLUConfig, read_letter

ROW = {"subject": "anatomy", "question": "Which?", "choices": ["w", "x", "y", "z"], "answer": "C"}


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("I think.\nAnswer: B", "B"),
        ("**Answer:** $B$", "B"),
        ("Answer : \\boxed{D}", "D"),
        ("Antwort: C", "C"),
        ("Réponse : A", "A"),
        ("答案：Ｃ", "C"),
        ("答え: B", "B"),
        ("정답: D", "D"),
        ("الإجابة: ج", "C"),
        ("الإجابة الصحيحة هي: د", "D"),
        ("উত্তর: ড", "C"),
        ("Answer: A\nAntwort: B", "A"),
        ("Answer: Because", "B"),  # a trap of these rules: a letter inside a word
        ("answer: b", "b"),  # another: lower case is read, and never equals the reference
        ("The letter is B", None),
        ("", None),
    ],
)
def test_letters(text: str, letter: str | None) -> None:
    assert read_letter(text) == letter


def test_prompt_and_verdict(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "answer": 0}) + "\n")
    task = MMLUConfig()
    first, second = task.items(tmp_path)
    assert first.prompt.text.startswith("Answer the following multiple choice question. The last line of your response")
    assert first.prompt.text.endswith("Which?\n\nA) w\nB) x\nC) y\nD) z")
    assert (first.reference, second.reference, first.group) == ("C", "A", "anatomy")
    assert task.judge(first, Output(text="Answer: C")).scores == {"accuracy": 1.0}
    assert task.judge(first, Output(text="Answer: D")).scores == {"accuracy": 0.0}


def test_likelihoods_compare_letters(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "dev.jsonl").write_text(json.dumps({**ROW, "question": "Shot?", "subject": "anatomy"}) + "\n")
    task = MMLULikelihoodConfig()
    (item,) = task.items(tmp_path)
    assert item.prompt.text == (
        "The following are multiple choice questions (with answers) about anatomy.\n\nShot?\nA. w\nB. x\nC. y\nD. z\n"
        "Answer: C\n\nWhich?\nA. w\nB. x\nC. y\nD. z\nAnswer:"
    )
    assert item.prompt.continuations == (" A", " B", " C", " D")
    assert task.judge(item, Output(log_likelihoods=(-3.0, -2.0, -1.0, -4.0))).scores == {"acc": 1.0}


def test_languages_of_mmmlu(tmp_path: Path) -> None:
    header = "Question,A,B,C,D,Answer,Subject\n"
    (tmp_path / "mmlu_DE-DE.csv").write_text(header + '"Was, genau?",1,2,3,4,B,anatomy\n')
    (tmp_path / "mmlu_BN-BD.csv").write_text(header + "কি?,1,2,3,4,A,anatomy\n")
    items = list(MMMLUConfig().items(tmp_path))
    assert [(item.language, item.reference) for item in items] == [("BN-BD", "A"), ("DE-DE", "B")]
    (tmp_path / "mmlu_BN-BD.csv").write_text(header + "কি?,1,2,3,4,ক,anatomy\n")
    with pytest.raises(TaskDataError, match="must be A, B, C or D"):
        list(MMMLUConfig().items(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object, got list"),
        ('{"subject": "a", "question": "b", "choices": []}', "has no column 'answer'"),
        ('{"subject": 1, "question": "b", "choices": [], "answer": "A"}', "'subject' must be str, got 1"),
        (json.dumps({**ROW, "choices": ["1"]}), "expected 4 choices"),
        (json.dumps({**ROW, "answer": 7}), "an answer from A to D"),
    ],
)
def test_wrong_data(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "test.jsonl").write_text(line)
    with pytest.raises(TaskDataError, match=message):
        list(MMLUConfig().items(tmp_path))


def test_missing_data_say_where_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=r"github\.com/hendrycks/test .*license: MIT.*--data"):
        list(MMLUConfig().items(tmp_path))
    with pytest.raises(TaskDataError, match="openai/MMMLU"):
        list(MMMLUConfig().items(tmp_path))
