"""One self-contained HTML file: scores, and a browser of samples with filters and search. No external request.

The page shows one run, or two runs side by side. Text of models is data of a script that sets `textContent` only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from openafm.core.files import atomic_file
from openafm.evaluation.harness.compare import Comparison
from openafm.evaluation.harness.results import Run, Sample
from openafm.evaluation.harness.statistics import Estimate

MAX_SAMPLES = 1_000
"""Samples of each task in the page, wrong ones first; the folder `samples` has all."""


def write_report(run: Run, path: Path) -> None:
    """Write the page of one run."""
    rows = [_row(name, "all", result.metric, result.score.count, [result.score]) for name, result in run.tasks.items()]
    for name, result in run.tasks.items():
        parts = {**(result.languages if len(result.languages) > 1 else {}), **result.groups}
        rows += [_row(name, part, result.metric, score.count, [score]) for part, score in parts.items()]
    samples = []
    for name, result in run.tasks.items():
        found = sorted(run.samples(name), key=lambda sample: sample.value(result.metric) or 0.0)
        samples += [_sample(name, result.metric, [each]) for each in found[:MAX_SAMPLES]]
    _write(path, run.model, [run.model], rows, samples, [f"signature {run.signature[:16]}"])


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the page of two runs: their table, and the items whose scores differ."""
    rows = []
    for row in comparison.rows:
        difference = row.difference
        shown = f"{100 * difference.mean:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
        rows.append(_row(row.task, row.language, row.metric, row.a.count, [row.a, row.b]) | {"difference": shown})
    samples = []
    for task in dict.fromkeys(row.task for row in comparison.rows):
        metric = comparison.a.tasks[task].metric
        others = {sample.id: sample for sample in comparison.b.samples(task)}
        pairs = [(each, others[each.id]) for each in comparison.a.samples(task) if each.id in others]
        differing = [pair for pair in pairs if pair[0].value(metric) != pair[1].value(metric)]
        samples += [_sample(task, metric, pair) for pair in differing[:MAX_SAMPLES]]
    models = [comparison.a.model, comparison.b.model]
    _write(path, " and ".join(models), models, rows, samples, ["items with equal scores are not shown"])


def _write(
    path: Path,
    title: str,
    models: Sequence[str],
    rows: Sequence[dict[str, Any]],
    samples: Sequence[dict[str, Any]],
    notes: Sequence[str],
) -> None:
    template = files("openafm.evaluation.harness").joinpath("report.html").read_text(encoding="utf-8")
    data = {"title": title, "models": models, "rows": rows, "samples": samples, "notes": notes, "most": MAX_SAMPLES}
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # a sample must not end the script
    with atomic_file(path, "w") as file:
        file.write(template.replace("__DATA__", text))


def _row(task: str, part: str, metric: str, count: int, scores: Sequence[Estimate]) -> dict[str, Any]:
    shown = [{"mean": score.mean, "low": score.interval[0], "high": score.interval[1]} for score in scores]
    return {"task": task, "part": part, "metric": metric, "count": count, "scores": shown}


def _sample(task: str, metric: str, samples: Sequence[Sample]) -> dict[str, Any]:
    first = samples[0]
    prompt = "\n\n".join(part for part in (first.prompt.get("instructions", ""), first.prompt["text"]) if part)
    return {
        "task": task,
        "id": first.id,
        "language": first.language,
        "group": first.group,
        "prompt": prompt,
        "expected": first.expected,
        "outputs": [_output(metric, sample) for sample in samples],
    }


def _output(metric: str, sample: Sample) -> dict[str, Any]:
    output = sample.output
    calls = "\n".join(json.dumps(dict(call), ensure_ascii=False) for call in output.calls)
    likelihoods = ", ".join(f"{value:.3f}" for value in output.log_likelihoods)
    return {
        "value": sample.value(metric),
        "text": output.text or calls or (f"log-likelihoods: {likelihoods}" if likelihoods else ""),
        "extraction": sample.extraction,
        "error": output.error,
        "finish": output.finish,
        "tokens": [output.prompt_tokens, output.generated_tokens],
        "seconds": output.seconds,
        "notes": sample.notes,
    }
