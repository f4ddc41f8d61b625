"""Samples and results of a run, and how they are read back from its folder."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.core.regular_files import read_document
from openafm.evaluation.harness.statistics import Estimate, estimate
from openafm.evaluation.harness.task import Item, Output, Score, Verdict

RESULTS = "results.json"
SAMPLES = "samples"


class RunFolderError(OpenAFMError):
    """A folder does not hold the results of a run, or a file in it is damaged."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An item with its output and verdict: one line of a file of samples."""

    id: str
    language: str
    group: str
    prompt: Mapping[str, Any]
    output: Output
    extraction: str | None
    expected: str
    scores: Mapping[str, Score]
    notes: Mapping[str, Any] = field(default_factory=dict)
    was_cached: bool = False

    @staticmethod
    def of(item: Item, output: Output, verdict: Verdict, *, was_cached: bool) -> Sample:
        """Return the sample of a judged output."""
        return Sample(
            id=item.id,
            language=item.language,
            group=item.group,
            prompt=item.prompt.to_dict(),
            output=output,
            extraction=verdict.extraction,
            expected=verdict.expected,
            scores=verdict.scores,
            notes=verdict.notes,
            was_cached=was_cached,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Sample:
        """Return the sample that `to_dict` wrote."""
        scores = {name: tuple(value) if isinstance(value, list) else value for name, value in values["scores"].items()}
        return Sample(**{**values, "output": Output.from_dict(values["output"]), "scores": scores})

    def value(self, metric: str) -> float | None:
        """Return the mean of the metric's values of this item; None if it has none."""
        values = flat(self.scores.get(metric, ()))
        return sum(values) / len(values) if values else None


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The metrics of a task as means with standard errors; the main metric also by language and by group.

    Attributes:
        num_failed: items whose request failed. They score 0.
        num_cut: outputs that the token limit ended.
        num_cached: outputs from the cache.
        tokens: sums of prompt and generated tokens.
        seconds: the sum over the items; requests overlap.
    """

    name: str
    metric: str
    count: int
    metrics: Mapping[str, Estimate]
    languages: Mapping[str, Estimate]
    groups: Mapping[str, Estimate]
    num_failed: int
    num_cut: int
    num_cached: int
    tokens: Mapping[str, int]
    seconds: float

    @property
    def score(self) -> Estimate:
        """The main metric."""
        return self.metrics[self.metric]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TaskResult:
        """Return the result that `to_dict` wrote."""
        parts = {
            part: {name: Estimate(**each) for name, each in values[part].items()}
            for part in ("metrics", "languages", "groups")
        }
        known = {name: values[name] for name in TaskResult.__dataclass_fields__}
        return TaskResult(**{**known, **parts})


@dataclass(frozen=True, kw_only=True)
class Run:
    """The results of a folder. `samples` reads the samples of a task; `bits_per_weight` is None for endpoints."""

    path: Path
    model: str
    signature: str
    tasks: Mapping[str, TaskResult]
    bits_per_weight: float | None = None

    def samples(self, task: str) -> list[Sample]:
        """Return the samples of a task.

        Raises:
            RunFolderError: the file is missing or damaged.
        """
        path = self.path / SAMPLES / f"{task.replace(':', '.').replace('/', '.')}.jsonl"
        try:
            lines = read_document(path, max_bytes=None).decode("utf-8").split("\n")
            return [Sample.from_dict(json.loads(line)) for line in lines if line]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}; run `openafm evaluate` again") from error


def open_run(path: Path) -> Run:
    """Return the results in a folder.

    Raises:
        RunFolderError: there are none, or they are damaged.
    """
    try:
        values = json.loads(read_document(path / RESULTS))
        tasks = {name: TaskResult.from_dict(each) for name, each in values["tasks"].items()}
        bits = values.get("bits_per_weight")  # not in results of earlier versions
        return Run(
            path=path,
            model=str(values["model"]),
            signature=str(values["signature"]),
            tasks=tasks,
            bits_per_weight=None if bits is None else float(bits),
        )
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{path} holds no {RESULTS}; write one with `openafm evaluate --tasks ... --out {path}`"
        ) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(f"{path / RESULTS} cannot be read: {type(error).__name__}: {error}") from error


def task_result(name: str, metric: str, samples: Sequence[Sample]) -> TaskResult:
    """Return the result of a task from its samples, at least one."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    languages: defaultdict[str, list[float]] = defaultdict(list)
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for each, score in sample.scores.items():
            values[each].extend(flat(score))
        languages[sample.language].extend(flat(sample.scores.get(metric, ())))
        if sample.group:
            groups[sample.group].extend(flat(sample.scores.get(metric, ())))
    return TaskResult(
        name=name,
        metric=metric,
        count=len(samples),
        metrics={each: estimate(found) for each, found in values.items() if found},
        languages={each: estimate(found) for each, found in sorted(languages.items()) if found},
        groups={each: estimate(found) for each, found in sorted(groups.items()) if found},
        num_failed=sum(bool(sample.output.error) for sample in samples),
        num_cut=sum(sample.output.finish == "length" for sample in samples),
        num_cached=sum(sample.was_cached for sample in samples),
        tokens={
            "prompt": sum(sample.output.prompt_tokens for sample in samples),
            "generated": sum(sample.output.generated_tokens for sample in samples),
        },
        seconds=round(sum(sample.output.seconds for sample in samples), 3),
    )


def flat(score: Score) -> tuple[float, ...]:
    """Return the values of a score."""
    return score if isinstance(score, tuple) else (float(score),)
