"""Runs of tasks from the command line: progress, report, table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from openafm.cli.output import counted, print_table, print_text

if TYPE_CHECKING:
    from openafm.evaluation.harness.answerer import Answerer
    from openafm.evaluation.harness.results import TaskResult
    from openafm.framework.backends.language_model import LanguageModel


def run_and_report(
    answerer: Answerer, tasks: dict[str, Any], data: Path, out: Path, cache: Path | None, options: Any
) -> dict[str, TaskResult]:
    """Run tasks with progress on standard error, and write the results and the report."""
    from openafm.core.files import data_home
    from openafm.core.progress import progress
    from openafm.evaluation.harness.cache import OutputCache
    from openafm.evaluation.harness.report import write_report
    from openafm.evaluation.harness.results import open_run
    from openafm.evaluation.harness.runner import run_tasks

    outputs = OutputCache(cache or data_home() / "evaluation" / "outputs.sqlite")
    try:
        with progress(f"evaluate {answerer.name}", len(tasks)) as bar:
            numbers = {name: number for number, name in enumerate(tasks)}
            results = run_tasks(
                answerer,
                tasks,
                data,
                out,
                outputs,
                options,
                lambda name, done, total: bar.update(numbers[name] + done / total, f"{name} {done}/{total}"),
            )
    finally:
        outputs.close()
    write_report(open_run(out), out / "report.html")
    return results


def print_results(results: dict[str, TaskResult], out: Path) -> None:
    """Print the scores by task and language, and what to know about the outputs."""
    rows = []
    for name, result in results.items():
        parts = {"all": result.score} | (dict(result.languages) if len(result.languages) > 1 else {})
        for language, score in parts.items():
            low, high = score.interval
            interval = f"[{100 * low:.1f}, {100 * high:.1f}]"
            rows.append((name, result.metric, language, score.count, _percent(score.mean), interval))
    print_table(("task", "metric", "language", "values", "score", "95 %"), rows)
    tokens = sum(sum(result.tokens.values()) for result in results.values())
    print_text(f"\n{tokens:,} tokens; samples and report: {out / 'report.html'}")
    for name, result in results.items():
        notes = {"failed": result.num_failed, "cut at the token limit": result.num_cut, "from the cache": result.num_cached}
        found = ", ".join(f"{count:,} {note}" for note, count in notes.items() if count)
        if found:
            print_text(f"{name}: of {counted(result.count, 'output')} {found}")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def adapter_identity(adapter: str | None, model: LanguageModel) -> str:
    """Return the digest of an adapter; empty without one."""
    if adapter is None:
        return ""
    from openafm.framework.backends.adapter import resolve_adapter
    from openafm.framework.backends.system_model import SystemLanguageModel

    assert isinstance(model, SystemLanguageModel)
    return resolve_adapter(adapter, model.described()).digest
