"""IFEval: prompts with instructions that a program can verify (arXiv 2311.07911)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openafm.core.config import nearest
from openafm.evaluation.harness.task import Item, Output, Prompt, Score, TaskConfig, TaskDataError, Verdict
from openafm.evaluation.tasks.files import Source, found, json_lines
from openafm.evaluation.tasks.ifeval_rules import CHECKS, detected_language, follows, has_published_sentences, variants

IFEVAL = Source(
    name="IFEval",
    origin="https://github.com/google-research/google-research (instruction_following_eval/data/input_data.jsonl)",
    license="CC BY 4.0",
)
_COLUMNS = {"key": int, "prompt": str, "instruction_id_list": list, "kwargs": list}


@dataclass(frozen=True, kw_only=True)
class IFEvalConfig(TaskConfig):
    """IFEval with the published verdicts: strict and loose, by prompt and by instruction.

    The main metric is the strict one by instruction, the report's "instruction level".
    """

    METRIC = "inst_level_strict_acc"

    max_tokens: int = 1280

    def check(self) -> None:
        detected_language("The libraries are loaded before the first request.")
        has_published_sentences()

    def items(self, data: Path) -> Iterator[Item]:
        path = found(IFEVAL, data, "ifeval/input_data.jsonl", "input_data.jsonl")
        for row in json_lines(path, _COLUMNS):
            names, arguments = row["instruction_id_list"], row["kwargs"]
            if len(names) != len(arguments):
                raise TaskDataError(
                    f"{path}: the prompt {row['key']} has {len(names)} instructions and {len(arguments)} kwargs"
                )
            for name in names:
                if name not in CHECKS:
                    raise TaskDataError(f"{path}: unknown instruction '{name}'{nearest(str(name), list(CHECKS))}")
            yield Item(
                id=str(row["key"]),
                prompt=Prompt(text=row["prompt"], max_tokens=self.max_tokens),
                reference=[[name, given] for name, given in zip(names, arguments, strict=True)],
                group=names[0].partition(":")[0] if names else "",
            )

    def judge(self, item: Item, output: Output) -> Verdict:
        try:
            strict = [follows(name, given, output.text) for name, given in item.reference]
            loose = [any(follows(name, given, text) for text in variants(output.text)) for name, given in item.reference]
        except (KeyError, TypeError, re.error) as error:
            raise TaskDataError(f"IFEval, prompt {item.id}: wrong arguments of an instruction: {error!r}") from error
        scores: dict[str, Score] = {
            "prompt_level_strict_acc": float(all(strict)),
            "inst_level_strict_acc": tuple(map(float, strict)),
            "prompt_level_loose_acc": float(all(loose)),
            "inst_level_loose_acc": tuple(map(float, loose)),
        }
        broken = [name for (name, _), is_followed in zip(item.reference, strict, strict=True) if not is_followed]
        return Verdict(
            scores=scores,
            extraction="follows all" if not broken else f"breaks {', '.join(broken)}",
            expected=", ".join(name for name, _ in item.reference),
            notes={} if has_published_sentences() else {"sentences": "without NLTK's punkt_tab"},
        )

    def failed(self, item: Item, output: Output) -> Verdict:
        zeros = (0.0,) * len(item.reference)
        return Verdict(
            scores={
                "prompt_level_strict_acc": 0.0,
                "inst_level_strict_acc": zeros,
                "prompt_level_loose_acc": 0.0,
                "inst_level_loose_acc": zeros,
            }
        )
