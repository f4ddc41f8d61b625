"""Summarization and rewriting, judged by checks that a program can make: facts kept, length, nothing added, language.

They find broken answers; they do not replace human grades of style.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from openafm.core.files import lines_of
from openafm.evaluation.features.base import FeatureConfig
from openafm.evaluation.harness.task import Item, Output, Prompt, Verdict
from openafm.evaluation.instructions.base import words
from openafm.evaluation.tasks.digits import with_ascii_digits

KINDS = ("summarization", "rewriting")
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s*")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


@dataclass(frozen=True, kw_only=True)
class TextsConfig(FeatureConfig):
    """Texts of `sets/texts.jsonl` with a request.

    `facts` is the share of required phrases in the answer. The score is `facts`, or 0 if the answer is too long (`length`),
    has a number that the text does not have (`grounded`), or is a copy of the text (`changed`).
    """

    METRIC: ClassVar[str] = "score"

    kind: str = "summarization"
    max_tokens: int = 256

    def __post_init__(self) -> None:
        self.require(self.kind in KINDS, f"unknown kind '{self.kind}'; known: {', '.join(KINDS)}")

    @property
    def about(self) -> str:
        return f"Texts with a request for {self.kind}: facts kept, nothing added, short enough."

    def items(self, data: Path) -> Iterator[Item]:
        for number, row in enumerate(own_set("texts.jsonl")):
            if row["kind"] == self.kind:
                prompt = Prompt(text=f"{row['request']}\n\n{row['text']}", max_tokens=self.max_tokens)
                yield Item(id=str(number), prompt=prompt, reference=row, language=row["language"])

    def judge(self, item: Item, output: Output) -> Verdict:
        row, answer = item.reference, output.text
        facts = [any(_plain(form) in _plain(answer) for form in fact.split("|")) for fact in row["facts"]]
        added = sorted(numbers(answer) - numbers(row["text"]) - numbers(row["request"]))
        count = len(words(answer))
        scores = {
            "facts": sum(facts) / len(facts),
            "length": float(0 < count <= row["max_words"]),
            "grounded": float(bool(answer.strip()) and not added),
            "changed": float(bool(answer.strip()) and _plain(answer) != _plain(row["text"])),
        }
        notes = {"lost": [fact for fact, kept in zip(row["facts"], facts, strict=True) if not kept], "added": added}
        return Verdict(
            scores={**scores, "score": math.prod(scores.values())},
            extraction=f"{count} words",
            expected=f"{', '.join(row['facts'])}; at most {row['max_words']} words",
            notes={name: found for name, found in notes.items() if found},
        )

    def constant(self, item: Item) -> Output:
        return Output(text="Everything is fine.")

    def pattern(self, item: Item) -> Output:
        """Return the first sentence of the text, the usual baseline of summaries."""
        text = item.prompt.text.partition("\n\n")[2].strip()
        return Output(text=_SENTENCE_END.split(text, maxsplit=1)[0])


def numbers(text: str) -> set[str]:
    """Return the numbers of a text, in digits of any script."""
    return {found.replace(",", ".") for found in _NUMBER.findall(with_ascii_digits(text))}


@cache
def own_set(name: str) -> list[Mapping[str, Any]]:
    """Return the rows of a set in `sets/`."""
    text = files("openafm.evaluation.features").joinpath("sets", name).read_text(encoding="utf-8")
    return [json.loads(line) for line in lines_of(text) if line]


def _plain(text: str) -> str:
    """Return a text without case, accents of composition and repeated spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
