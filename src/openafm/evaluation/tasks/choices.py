"""MMLU and MMMLU: multiple choice with four options (arXiv 2009.03300).

`mmlu` and `mmmlu` follow simple-evals: zero-shot chain of thought, and a letter after "Answer:" in any of its languages.
`mmlu:lm_eval` follows lm-evaluation-harness: the letter with the highest likelihood after five examples of the subject.

Traps of simple-evals that these rules keep: the first pattern of the list that matches anywhere decides, not the last line;
Arabic "ج" is inside the class أ-د, and a letter is accepted inside a word ("Answer: Because" gives B).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, TaskDataError, Verdict
from openafm.evaluation.tasks.files import Source, found, json_lines, table

LETTERS = "ABCD"
MMLU = Source(
    name="MMLU", origin="https://github.com/hendrycks/test (one JSON object a line: subject, question, choices, answer)",
    license="MIT",
)  # fmt: skip
MMMLU = Source(
    name="MMMLU",
    origin="the Hugging Face data set openai/MMMLU, test/mmlu_LANGUAGE.csv (columns Question, A, B, C, D, Answer, Subject)",
    license="MIT",
)
_COLUMNS: dict[str, type | tuple[type, ...]] = {"subject": str, "question": str, "choices": list, "answer": (str, int)}
_MARKUP = ("**", "$\\boxed{", "}$", "\\$", "$\\text{", "$", "\\mathrm{", "\\{", "\\text", "\\(", "\\mathbf{", "{", "\\boxed")
_LETTERS_OF_SCRIPTS = (dict(zip("أبجد", LETTERS, strict=True)) | dict(zip("অবডঢ", LETTERS, strict=True))
                       | dict(zip("ＡＢＣＤ", LETTERS, strict=True)))  # fmt: skip


@cache
def simple_evals() -> dict[str, Any]:
    """Return the prompts and patterns of simple-evals."""
    text = files("openafm.evaluation.tasks").joinpath("prompts/simple_evals.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with four options and the letter of the right one."""

    subject: str
    question: str
    choices: tuple[str, ...]
    answer: str


@dataclass(frozen=True, kw_only=True)
class MMLUConfig(TaskConfig):
    """MMLU by simple-evals' rules. Groups are subjects."""

    max_tokens: int = 2048

    def items(self, data: Path) -> Iterator[Item]:
        for number, question in enumerate(read_mmlu(found(MMLU, data, "mmlu/test.jsonl", "test.jsonl"))):
            yield chain_of_thought_item(question, f"{question.subject}-{number}", "en", self.max_tokens)

    def judge(self, item: Item, output: Output) -> Verdict:
        letter = read_letter(output.text)
        return Verdict(scores={"accuracy": float(letter == item.reference)}, extraction=letter, expected=item.reference)


@dataclass(frozen=True, kw_only=True)
class MMMLUConfig(MMLUConfig):
    """MMLU in the languages of the files mmlu_LANGUAGE.csv, such as mmlu_DE-DE.csv."""

    def items(self, data: Path) -> Iterator[Item]:
        folder = data / "mmmlu" if (data / "mmmlu").is_dir() else data
        paths = sorted([*folder.glob("mmlu_*.csv"), *folder.glob("mmlu_*.csv.gz")])
        if not paths:
            raise MMMLU.missing(data, ["mmmlu/mmlu_DE-DE.csv"])
        for path in paths:
            language = path.name.removeprefix("mmlu_").partition(".")[0].replace("_", "-")
            for number, row in enumerate(table(path, ("Question", *LETTERS, "Answer", "Subject"))):
                if row["Answer"] not in LETTERS:
                    raise TaskDataError(f"{path}: row {number + 2}: 'Answer' must be A, B, C or D, got {row['Answer']!r}")
                question = Question(
                    subject=row["Subject"],
                    question=row["Question"],
                    choices=tuple(row[letter] for letter in LETTERS),
                    answer=row["Answer"],
                )
                yield chain_of_thought_item(question, f"{language}-{number}", language, self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class MMLULikelihoodConfig(TaskConfig):
    """MMLU by lm-evaluation-harness's rules: log-likelihoods of the four letters, few-shot from the dev split."""

    METRIC = "acc"

    num_shots: int = 5

    def items(self, data: Path) -> Iterator[Item]:
        shots: dict[str, list[Question]] = {}
        if self.num_shots:
            for question in read_mmlu(found(MMLU, data, "mmlu/dev.jsonl", "dev.jsonl")):
                shots.setdefault(question.subject, []).append(question)
        for number, question in enumerate(read_mmlu(found(MMLU, data, "mmlu/test.jsonl", "test.jsonl"))):
            subject = question.subject.replace("_", " ")
            prefix = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
            prefix += "".join(
                f"{_listed(shot)} {shot.answer}\n\n" for shot in shots.get(question.subject, ())[: self.num_shots]
            )
            yield Item(
                id=f"{question.subject}-{number}",
                prompt=Prompt(
                    kind="choice",
                    text=prefix + _listed(question),
                    prefix=prefix,
                    continuations=tuple(f" {letter}" for letter in LETTERS),
                ),
                reference=question.answer,
                group=question.subject,
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        best = max(range(len(LETTERS)), key=lambda index: output.log_likelihoods[index])  # the first of equal ones
        letter = LETTERS[best]
        return Verdict(scores={"acc": float(letter == item.reference)}, extraction=letter, expected=item.reference)


def read_letter(text: str) -> str | None:
    """Return the letter of an answer by simple-evals' rules, in any of its languages and scripts; None if there is none."""
    for markup in _MARKUP:
        text = text.replace(markup, "")
    for pattern in _patterns():
        if match := pattern.search(text):
            return "".join(_LETTERS_OF_SCRIPTS.get(each, each) for each in match[1]).strip()
    return None


def read_mmlu(path: Path) -> Iterator[Question]:
    """Yield the questions of a file; the answer is a letter, or the index of an option.

    Raises:
        TaskDataError: a column is missing or wrong.
    """
    for number, row in enumerate(json_lines(path, _COLUMNS), start=1):
        answer = row["answer"] if isinstance(row["answer"], str) else (LETTERS + "?" * 9)[row["answer"]]
        if len(row["choices"]) != len(LETTERS) or answer not in LETTERS:
            raise TaskDataError(
                f"{path}:{number}: expected 4 choices and an answer from A to D, got {len(row['choices'])} choices and"
                f" the answer {row['answer']!r}"
            )
        choices = tuple(map(str, row["choices"]))
        yield Question(subject=row["subject"], question=row["question"], choices=choices, answer=answer)


def chain_of_thought_item(question: Question, id: str, language: str, max_tokens: int) -> Item:
    """Return the item of a question with simple-evals' prompt."""
    options = dict(zip(LETTERS, question.choices, strict=True))
    text = simple_evals()["multiple_choice"].format(Question=question.question, **options)
    return Item(
        id=id,
        prompt=Prompt(text=text, max_tokens=max_tokens),
        reference=question.answer,
        language=language,
        group=question.subject,
    )


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    data = simple_evals()
    return tuple(re.compile(data["answer_template"].format(each)) for each in data["answer_patterns"])


def _listed(question: Question) -> str:
    options = "".join(f"\n{letter}. {option}" for letter, option in zip(LETTERS, question.choices, strict=True))
    return f"{question.question.strip()}{options}\nAnswer:"
