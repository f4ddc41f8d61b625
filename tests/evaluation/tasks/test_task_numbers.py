"""MGSM and GSM8K: numbers in answers of all languages and scripts, by both rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openafm.evaluation.harness.task import Output, TaskDataError
from openafm.evaluation.tasks.digits import with_ascii_digits
from openafm.evaluation.tasks.numbers import (
    GSM8KCompletionConfig,
    GSM8KConfig,
    MGSMCompletionConfig,
    MGSMConfig,
    flexible_number,
    read_number,
)


@pytest.mark.parametrize(
    ("text", "prefix", "number"),
    [
        ("Answer: 18", "Answer", "18"),
        ("Answer: 3\nAnswer: 1,234 dollars", "Answer", "1234"),
        ("Antwort: 12 von 18", "Antwort", "18"),
        ("Réponse: 18.", "Réponse", "18"),
        ("答案：18", "答案", "18"),
        ("Answer: -5", "Answer", "5"),  # a trap: the sign is dropped
        ("উত্তর: ১৮", "উত্তর", "১৮"),
        ("18", "Answer", ""),
        ("Answer: none", "Answer", ""),
    ],
)
def test_numbers_by_simple_evals(text: str, prefix: str, number: str) -> None:
    assert read_number(text, prefix) == number


def test_digits_of_scripts() -> None:
    assert with_ascii_digits("১৮ ١٨ १८ ๑๘ １８ 18 ١٬٢٣٤٫٥") == "18 18 18 18 18 18 1,234.5"


@pytest.mark.parametrize(
    ("language", "text", "accuracy", "any_script"),
    [
        ("bn", "উত্তর: 18", 1.0, 1.0),
        ("bn", "উত্তর: ১৮", 0.0, 1.0),
        ("zh", "答案：１８", 0.0, 1.0),
        ("th", "คำตอบ: ๑๘", 0.0, 1.0),
        ("de", "Antwort: 18,00", 0.0, 0.0),  # a trap: the comma is removed
        ("en", "Answer: 18.00", 1.0, 1.0),
        ("en", "18", 0.0, 0.0),
    ],
)
def test_verdicts_of_mgsm(tmp_path: Path, language: str, text: str, accuracy: float, any_script: float) -> None:
    (tmp_path / f"mgsm_{language}.tsv").write_text("How many?\t18\n")
    (item,) = MGSMConfig().items(tmp_path)
    assert item.language == language
    assert item.prompt.text.endswith("How many?")
    assert MGSMConfig().judge(item, Output(text=text)).scores == {"accuracy": accuracy, "any_script": any_script}


def test_completions_of_mgsm(tmp_path: Path) -> None:
    (tmp_path / "mgsm_fr.tsv").write_text("Combien ?\t1,200\n")
    (item,) = MGSMCompletionConfig().items(tmp_path)
    assert item.prompt.text == "Question : Combien ?\nRéponse :"
    scores = MGSMCompletionConfig().judge(item, Output(text=" 1,200.")).scores
    assert scores == {"exact_match,remove_whitespace": 1.0, "exact_match,flexible-extract": 1.0}
    assert set(MGSMCompletionConfig().judge(item, Output(text="It is 12")).scores.values()) == {0.0}


def test_gsm8k_by_both_rules(tmp_path: Path) -> None:
    rows = [{"question": f"Q{number}?", "answer": f"Steps.\n#### {number},000"} for number in range(1, 9)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "train.jsonl").write_text(lines)
    (tmp_path / "test.jsonl").write_text(lines)
    chat = next(iter(GSM8KConfig().items(tmp_path)))
    assert GSM8KConfig().judge(chat, Output(text="So.\nAnswer: $1,000")).scores["accuracy"] == 1.0
    task = GSM8KCompletionConfig(num_shots=2)
    first, second, *_ = task.items(tmp_path)
    assert first.prompt.text.count("Question: ") == 3
    assert first.prompt.text.split("\n\n")[:2] != second.prompt.text.split("\n\n")[:2]  # examples are drawn again
    assert task.judge(first, Output(text=" Steps.\n#### 1,000")).scores == {
        "exact_match,strict-match": 1.0,
        "exact_match,flexible-extract": 1.0,
    }
    assert task.judge(first, Output(text="It is $1000.")).scores["exact_match,strict-match"] == 0.0
    assert flexible_number("no number") == "[invalid]"
    assert flexible_number("1, then -3") == "-3"


@pytest.mark.parametrize(("row", "message"), [("a\tb\tc", "has 3 columns"), ("a\t1.5", "must be an integer")])
def test_wrong_rows(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "mgsm_en.tsv").write_text(row + "\n")
    with pytest.raises(TaskDataError, match=message):
        list(MGSMConfig().items(tmp_path))
