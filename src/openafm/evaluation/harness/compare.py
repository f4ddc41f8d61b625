"""Compares two runs on the items that both have: scores, and differences with intervals, in all and by language."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openafm.evaluation.harness.results import Run, RunFolderError, Sample
from openafm.evaluation.harness.statistics import Difference, Estimate, estimate, paired_difference


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a comparison: a task in all or in one language.

    `wins` and `losses` count the items where b scores higher or lower than a.
    """

    task: str
    language: str
    metric: str
    a: Estimate
    b: Estimate
    difference: Difference
    wins: int
    losses: int

    def to_dict(self) -> dict[str, Any]:
        intervals = {"a_interval": self.a.interval, "b_interval": self.b.interval}
        return asdict(self) | {"difference": self.difference.to_dict()} | intervals


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs, with the rows of their common tasks."""

    a: Run
    b: Run
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        models = {name: {"model": run.model, "path": str(run.path)} for name, run in (("a", self.a), ("b", self.b))}
        return models | {"rows": [row.to_dict() for row in self.rows]}


def compare_runs(a: Run, b: Run) -> Comparison:
    """Return the comparison of two runs.

    Raises:
        RunFolderError: they have no task or no item in common.
    """
    rows: list[Row] = []
    for task, result in a.tasks.items():
        if task in b.tasks:
            rows += _rows(task, result.metric, a.samples(task), b.samples(task))
    if not rows:
        raise RunFolderError(
            f"{a.path} ({', '.join(a.tasks)}) and {b.path} ({', '.join(b.tasks)}) have no task with equal items; run the"
            " same tasks with the same data and limits"
        )
    return Comparison(a=a, b=b, rows=tuple(rows))


def _rows(task: str, metric: str, a: Sequence[Sample], b: Sequence[Sample]) -> list[Row]:
    others = {sample.id: sample for sample in b}
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in a:
        other = others.get(sample.id)
        if other is None or other.prompt != sample.prompt:
            continue
        values = sample.value(metric), other.value(metric)
        if values[0] is not None and values[1] is not None:
            pairs["all"].append((values[0], values[1]))
            pairs[sample.language].append((values[0], values[1]))
    languages = [name for name in sorted(pairs) if name != "all"]
    names = ["all", *languages] if len(languages) > 1 else ["all"] if pairs else []
    return [_row(task, name, metric, pairs[name]) for name in names]


def _row(task: str, language: str, metric: str, pairs: Sequence[tuple[float, float]]) -> Row:
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Row(
        task=task,
        language=language,
        metric=metric,
        a=estimate(a),
        b=estimate(b),
        difference=paired_difference(a, b),
        wins=sum(second > first for first, second in pairs),
        losses=sum(second < first for first, second in pairs),
    )
