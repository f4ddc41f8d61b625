"""Prompts with open answers: Arena-Hard, and prompts of your own in any language. A judge compares two runs afterwards.

`openafm evaluate --tasks arena_hard --out eval/a` stores the answers; `openafm evaluate judge eval/a eval/b` compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig, Verdict
from openafm.evaluation.tasks.files import Source, found, json_lines

ARENA_HARD = Source(
    name="Arena-Hard",
    origin="https://github.com/lmarena/arena-hard-auto (data/arena-hard-v0.1/question.jsonl)",
    license="Apache-2.0",
)
OWN_PROMPTS = Source(
    name="your prompts",
    origin="native writers: docs/evaluation.md has the format and the authoring guide",
    license="yours",
)


@dataclass(frozen=True, kw_only=True)
class ArenaHardConfig(TaskConfig):
    """The prompts of Arena-Hard. The metric is the share of answers that are not empty and not cut off."""

    METRIC = "answered"

    max_tokens: int = 2048

    def items(self, data: Path) -> Iterator[Item]:
        path = found(ARENA_HARD, data, "arena-hard/v0.1/question.jsonl", "question.jsonl")
        for row in json_lines(path, {"uid": str, "prompt": str, "cluster": str}):
            yield Item(id=row["uid"], prompt=Prompt(text=row["prompt"], max_tokens=self.max_tokens), group=row["cluster"])

    def judge(self, item: Item, output: Output) -> Verdict:
        is_whole = bool(output.text.strip()) and output.finish == "stop"
        return Verdict(scores={"answered": float(is_whole)}, extraction=None, expected="")


@dataclass(frozen=True, kw_only=True)
class OwnPromptsConfig(ArenaHardConfig):
    """Prompts from prompts.jsonl: `id`, `prompt`, `language`, and optionally `category`."""

    def items(self, data: Path) -> Iterator[Item]:
        path = found(OWN_PROMPTS, data, "prompts/prompts.jsonl", "prompts.jsonl")
        for row in json_lines(path, {"id": str, "prompt": str, "language": str}):
            yield Item(
                id=row["id"],
                prompt=Prompt(text=row["prompt"], max_tokens=self.max_tokens),
                language=row["language"],
                group=str(row.get("category", "")),
            )
