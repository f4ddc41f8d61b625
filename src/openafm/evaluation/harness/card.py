"""Results as the evaluation part of a model card, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from openafm.core.errors import UsageError
from openafm.evaluation.harness.results import Run


def card_text(runs: Sequence[Run]) -> str:
    """Return a Markdown table of the main metrics with intervals, and of languages where a task has several.

    Raises:
        UsageError: the runs are of different models.
    """
    first = runs[0]
    others = [run for run in runs if run.signature != first.signature]
    if others:
        raise UsageError(
            f"{others[0].path} is of another model or sampling than {first.path}; make one card for each, or compare them"
        )
    lines = [
        "## Evaluation",
        "",
        f"{first.model}, signature of model and sampling `{first.signature[:16]}`. Intervals are 95 %.",
        "",
        "| task | metric | part | values | score | interval |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        for name, result in run.tasks.items():
            parts = {"all": result.score} | (dict(result.languages) if len(result.languages) > 1 else {})
            for part, score in parts.items():
                low, high = score.interval
                lines.append(
                    f"| {name} | {result.metric} | {part} | {score.count} | {100 * score.mean:.1f} |"
                    f" {100 * low:.1f} to {100 * high:.1f} |"
                )
    found = [result for run in runs for result in run.tasks.values() if result.num_cut]
    cut = [f"{result.name} ({result.num_cut} of {result.count})" for result in found]
    if cut:
        lines += ["", f"Answers that the token limit ended: {', '.join(cut)}."]
    return "\n".join(lines)
