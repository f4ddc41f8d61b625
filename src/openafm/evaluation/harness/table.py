"""Runs as the report prints them in its Tables 1 to 3: a row for each model, a column for each task, bits per weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openafm.core.errors import UsageError
from openafm.evaluation.harness.compare import Comparison, Row, compare_runs
from openafm.evaluation.harness.results import Run

BITS = "bits per weight"


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """Scores in percent with 95 % intervals; after the first model, differences to it on equal items.

    `comparisons` are of the first run with each other one.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    comparisons: tuple[Comparison, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"header": self.header, "rows": self.rows}

    @property
    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.header, tuple("---" for _ in self.header), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report_table(runs: Sequence[Run]) -> ReportTable:
    """Return the table of runs, the first of which is the reference.

    Raises:
        UsageError: there are fewer than two runs.
        RunFolderError: a run has no item in common with the first.
    """
    if len(runs) < 2:
        raise UsageError(f"a comparison needs two runs or more, got {len(runs)}")
    first, *others = runs
    comparisons = tuple(compare_runs(first, other) for other in others)
    tasks = [name for name in first.tasks if any(name in other.tasks for other in others)]
    has_bits = any(run.bits_per_weight is not None for run in runs)
    rows = [_scores(first, first.model, tasks, has_bits)]
    for number, comparison in enumerate(comparisons, start=2):
        run, same_name = comparison.b, comparison.b.model == first.model
        name = f"{run.model} ({run.path.name})" if same_name else run.model
        rows += [_scores(run, name, tasks, has_bits), _differences(comparison.rows, tasks, has_bits, number)]
    return ReportTable(header=("model", *tasks, *([BITS] if has_bits else [])), rows=tuple(rows), comparisons=comparisons)


def _scores(run: Run, name: str, tasks: Sequence[str], has_bits: bool) -> tuple[str, ...]:
    cells = []
    for task in tasks:
        result = run.tasks.get(task)
        if result is None:
            cells.append("-")
            continue
        low, high = result.score.interval
        cells.append(f"{100 * result.score.mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    bits = "-" if run.bits_per_weight is None else f"{run.bits_per_weight:.2f}"
    return (name, *cells, *([bits] if has_bits else []))


def _differences(rows: Sequence[Row], tasks: Sequence[str], has_bits: bool, number: int) -> tuple[str, ...]:
    found = {row.task: row.difference for row in rows if row.language == "all"}
    cells = [found[task].text if task in found else "-" for task in tasks]
    return (f"{number} - 1", *cells, *([""] if has_bits else []))
