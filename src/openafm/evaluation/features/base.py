"""Base of features on our own sets: tasks with two baselines, which show what a score is worth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from openafm.core.errors import UsageError
from openafm.evaluation.harness.answerer import RecordedAnswerer
from openafm.evaluation.harness.task import Item, Output, Prompt, TaskConfig

Baseline: TypeAlias = Literal["constant", "pattern"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)


@dataclass(frozen=True, kw_only=True)
class FeatureConfig(TaskConfig):
    """Base of features."""

    @property
    def about(self) -> str:
        """What the set asks, in a line: the first of the docstring."""
        return (type(self).__doc__ or "").strip().split("\n")[0]

    @abstractmethod
    def constant(self, item: Item) -> Output:
        """Return an answer that does not depend on the item's text."""

    @abstractmethod
    def pattern(self, item: Item) -> Output:
        """Return an answer by rules that need no model, such as regular expressions. Reads the prompt, not the reference."""


def baseline_answerer(name: str, tasks: Mapping[str, FeatureConfig], data: Path) -> RecordedAnswerer:
    """Return what answers the tasks' prompts with a baseline.

    Raises:
        UsageError: the baseline is unknown.
    """
    if name not in BASELINES:
        raise UsageError(f"unknown baseline '{name}'; known: {', '.join(BASELINES)}")
    outputs: dict[str, Output] = {}
    for task in tasks.values():
        answer = task.constant if name == "constant" else task.pattern
        outputs |= {item.prompt.digest: answer(item) for item in task.items(data)}

    def recorded(prompt: Prompt) -> Output:
        return outputs[prompt.digest]

    return RecordedAnswerer(recorded, f"baseline {name}")
