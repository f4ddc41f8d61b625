"""Output language: does an answer have the language of its request?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from openafm.evaluation.features.base import FeatureConfig
from openafm.evaluation.features.texts import own_set
from openafm.evaluation.harness.task import Item, Output, Prompt, Verdict
from openafm.evaluation.instructions.content import ResponseLanguageConfig

LEAST_CHARACTERS = 12
"""Shorter answers do not show their language and do not count as right."""


@dataclass(frozen=True, kw_only=True)
class OutputLanguageConfig(FeatureConfig):
    """Open requests in sixteen languages; the metric is the share of answers in the same language."""

    METRIC: ClassVar[str] = "match"

    max_tokens: int = 128

    def items(self, data: Path) -> Iterator[Item]:
        for number, row in enumerate(own_set("languages.jsonl")):
            yield Item(
                id=str(number),
                prompt=Prompt(text=row["prompt"], max_tokens=self.max_tokens),
                reference=row["language"],
                language=row["language"],
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        text = output.text.strip()
        is_match = len(text) >= LEAST_CHARACTERS and ResponseLanguageConfig(language=item.reference).follows(text)
        return Verdict(scores={"match": float(is_match)}, extraction=text[:80], expected=item.reference)

    def constant(self, item: Item) -> Output:
        return Output(text="I am happy to help you with this question.")

    def pattern(self, item: Item) -> Output:
        """Repeat the request: the metric is met by any text in the right language."""
        return Output(text=item.prompt.text)
