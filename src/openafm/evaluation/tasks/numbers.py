"""MGSM (arXiv 2210.03057) and GSM8K: word problems with a number as answer.

`mgsm` and `gsm8k` follow simple-evals: the localized instruction of the language, the last number after the last localized
"Answer". Traps of these rules that are kept:

- minus signs are dropped, since the number pattern has none
- digits of other scripts are read but never equal the reference; the metric `any_script` compares them by value
- "Answer" is found anywhere, also inside a word, and commas are removed before numbers are read ("1,2" is 12)

`:lm_eval` follows lm-evaluation-harness: a completion after "Question: ...", with metrics by its filters.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, TaskDataError, Verdict
from openafm.evaluation.tasks.choices import simple_evals
from openafm.evaluation.tasks.digits import with_ascii_digits
from openafm.evaluation.tasks.files import Source, found, json_lines, table

MGSM = Source(name="MGSM", origin="https://github.com/google-research/url-nlp (folder mgsm)", license="CC BY 4.0")
GSM8K = Source(
    name="GSM8K",
    origin="https://github.com/openai/grade-school-math (grade_school_math/data)",
    license="MIT",
)
LANGUAGES = ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
_NUMBER = re.compile(r"\d+\.?\d*")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_INVALID = "[invalid]"
_GSM8K_IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
_QUESTIONS = {
    "bn": "প্রশ্ন:", "de": "Frage:", "en": "Question:", "es": "Pregunta:", "fr": "Question :", "ja": "問題：", "ru": "Задача:",
    "sw": "Swali:", "te": "ప్రశ్న:", "th": "โจทย์:", "zh": "问题：",
}  # fmt: skip
_ANSWERS = {"de": "Antwort:", "es": "Respuesta:", "fr": "Réponse :"}  # lm-evaluation-harness has "Answer:" for the others
_FEW_SHOT_SEED = 1234  # of lm-evaluation-harness


@dataclass(frozen=True, kw_only=True)
class MGSMConfig(TaskConfig):
    """MGSM by simple-evals' rules, in all languages of the data."""

    max_tokens: int = 1024

    def items(self, data: Path) -> Iterator[Item]:
        for language, number, question, answer in _mgsm(data):
            yield _instructed(question, answer, language, f"{language}-{number}", self.max_tokens)

    def judge(self, item: Item, output: Output) -> Verdict:
        prefix = simple_evals()["mgsm"][item.language]["answer"]
        number = read_number(output.text, prefix)
        plain = read_number(with_ascii_digits(output.text), prefix)
        scores = {"accuracy": _same(item.reference, number), "any_script": _same(item.reference, plain)}
        return Verdict(scores=scores, extraction=number, expected=item.reference)


@dataclass(frozen=True, kw_only=True)
class GSM8KConfig(MGSMConfig):
    """GSM8K by simple-evals' rules for English."""

    def items(self, data: Path) -> Iterator[Item]:
        for number, (question, answer) in enumerate(_gsm8k(data, "test")):
            yield _instructed(question, gold_number(answer), "en", str(number), self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class MGSMCompletionConfig(TaskConfig):
    """MGSM by the rules of lm-evaluation-harness's `mgsm_direct`: no examples, no reasoning."""

    METRIC = "exact_match,flexible-extract"

    max_tokens: int = 256

    def items(self, data: Path) -> Iterator[Item]:
        for language, number, question, answer in _mgsm(data):
            label = _QUESTIONS[language]
            yield Item(
                id=f"{language}-{number}",
                prompt=Prompt(
                    kind="completion",
                    text=f"{label} {question}\n{_ANSWERS.get(language, 'Answer:')}",
                    stop=(label, "</s>", "<|im_end|>"),
                    max_tokens=self.max_tokens,
                ),
                reference=answer,
                language=language,
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        found_number = flexible_number(output.text)
        texts = {"remove_whitespace": output.text.strip(), "flexible-extract": found_number}
        wanted = _without_punctuation(item.reference)
        scores = {f"exact_match,{name}": float(_without_punctuation(text) == wanted) for name, text in texts.items()}
        return Verdict(scores=scores, extraction=found_number, expected=item.reference)


@dataclass(frozen=True, kw_only=True)
class GSM8KCompletionConfig(TaskConfig):
    """GSM8K by the rules of lm-evaluation-harness's `gsm8k`: examples drawn again for each question, with its seed."""

    METRIC = "exact_match,flexible-extract"

    num_shots: int = 5
    max_tokens: int = 256

    def items(self, data: Path) -> Iterator[Item]:
        train = list(_gsm8k(data, "train")) if self.num_shots else []
        generator = random.Random(_FEW_SHOT_SEED)
        for number, (question, answer) in enumerate(_gsm8k(data, "test")):
            shots = [train[index] for index in generator.sample(range(len(train)), self.num_shots)] if train else []
            prefix = "".join(f"Question: {asked}\nAnswer: {told}\n\n" for asked, told in shots)
            yield Item(
                id=str(number),
                prompt=Prompt(
                    kind="completion",
                    text=f"{prefix}Question: {question}\nAnswer:",
                    stop=("Question:", "</s>", "<|im_end|>"),
                    max_tokens=self.max_tokens,
                ),
                reference=answer,
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        strict = _STRICT.findall(output.text)
        texts = {
            "strict-match": strict[0].strip() if strict else _INVALID,
            "flexible-extract": flexible_number(output.text),
        }
        wanted = _cleaned(item.reference)
        scores = {f"exact_match,{name}": float(_cleaned(text) == wanted) for name, text in texts.items()}
        return Verdict(scores=scores, extraction=texts["flexible-extract"], expected=gold_number(item.reference))


def read_number(text: str, prefix: str) -> str:
    """Return the last number after the last `prefix`, without commas; empty if there is none."""
    if prefix not in text:
        return ""
    numbers = _NUMBER.findall(text.split(prefix)[-1].replace(",", ""))
    return numbers[-1].rstrip(".") if numbers else ""


def flexible_number(text: str) -> str:
    """Return the last number of a text by the filter `flexible-extract` of lm-evaluation-harness."""
    numbers = _FLEXIBLE.findall(text)
    return next((each.strip() for each in numbers[-1] if each), _INVALID) if numbers else _INVALID


def gold_number(answer: str) -> str:
    """Return the number of a worked answer of GSM8K."""
    return answer.rpartition("####")[2].strip().replace(",", "")


def _instructed(question: str, answer: str, language: str, id: str, max_tokens: int) -> Item:
    text = simple_evals()["mgsm"][language]["instruction"].format(input=question)
    return Item(id=id, prompt=Prompt(text=text, max_tokens=max_tokens), reference=answer, language=language)


def _mgsm(data: Path) -> Iterator[tuple[str, int, str, str]]:
    """Yield language, number, question and answer."""
    folder = data / "mgsm" if (data / "mgsm").is_dir() else data
    paths = {language: folder / f"mgsm_{language}.tsv" for language in LANGUAGES}
    if not any(path.is_file() for path in paths.values()):
        raise MGSM.missing(data, ["mgsm/mgsm_en.tsv"])
    for language, path in paths.items():
        if path.is_file():
            for number, row in enumerate(table(path, ("question", "answer"), delimiter="\t", has_header=False)):
                answer = row["answer"].strip().replace(",", "")
                if not re.fullmatch(r"-?\d+", answer):
                    raise TaskDataError(f"{path}: row {number + 1}: the answer must be an integer, got {row['answer']!r}")
                yield language, number, row["question"], answer


def _gsm8k(data: Path, split: str) -> Iterator[tuple[str, str]]:
    path = found(GSM8K, data, f"gsm8k/{split}.jsonl", f"{split}.jsonl")
    for number, row in enumerate(json_lines(path, {"question": str, "answer": str}), start=1):
        if "####" not in row["answer"]:
            raise TaskDataError(f"{path}:{number}: the answer must end with '#### NUMBER', got {row['answer'][-40:]!r}")
        yield row["question"], row["answer"]


def _same(gold: str, number: str) -> float:
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return float(gold == number)


def _without_punctuation(text: str) -> str:
    return text.lower().translate(str.maketrans("", "", string.punctuation))


def _cleaned(text: str, patterns: Sequence[str] = _GSM8K_IGNORED) -> str:
    for pattern in patterns:
        text = re.sub(pattern, "", text)
    return text.lower()
