"""`openafm evaluate compare` and `openafm evaluate judge`: two runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.evaluation.runs import run_and_report
from openafm.cli.model_options import BaseUrlOption, KeyVariableOption, open_model
from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, print_json, print_table, print_text
from openafm.core.errors import UsageError

if TYPE_CHECKING:
    from openafm.evaluation.harness.compare import Comparison


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="A B...", help="Folders of runs (--out), or with --tasks bundles by name or path.")
    ],
    tasks: Annotated[
        str | None, typer.Option(help="Run these tasks on the bundles first, separated by commas: mmlu,ifeval,...")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the data of the tasks.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs of --tasks, one folder for each bundle.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="With --tasks: items of each task and language.")] = None,
    plugins: PluginsOption = None,
    html: Annotated[Path | None, typer.Option(help="Write the table and the items that differ to this HTML file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of models in Markdown only.")] = False,
    json: JsonOption = False,
) -> None:
    """Compare runs on their common items, such as a bundle and its compressed form: scores and differences with intervals.

    The first table has a row for each model, as the report's Tables 1 to 3; the second one has languages.
    """
    from openafm.evaluation.harness.report import write_comparison
    from openafm.evaluation.harness.results import open_run
    from openafm.evaluation.harness.table import report_table

    if len(runs) < 2:
        raise UsageError("compare needs two or more runs; the first is the reference")
    folders = [Path(run) for run in runs] if tasks is None else _evaluated(runs, tasks, data, out, limit)
    table = report_table([open_run(folder) for folder in folders])
    if html is not None:
        write_comparison(table.comparisons[0], html)
    if json:
        others = {"others": [each.to_dict() for each in table.comparisons[1:]]} if len(runs) > 2 else {}
        print_json(table.comparisons[0].to_dict() | {"table": table.to_dict()} | others)
        return
    if markdown:
        print_text(table.markdown)
        return
    print_table(table.header, table.rows)
    for comparison in table.comparisons:
        print_text(f"\na: {comparison.a.model}, b: {comparison.b.model}")
        print_table(("task", "language", "items", "a", "b", "b - a", "95 %", "differ"), _language_rows(comparison))
    print_text("\nb - a: points, with the interval of a paired bootstrap; * and differ: the interval excludes 0")


def _language_rows(comparison: Comparison) -> list[tuple[object, ...]]:
    return [
        (
            row.task,
            row.language,
            row.a.count,
            f"{100 * row.a.mean:.1f}",
            f"{100 * row.b.mean:.1f}",
            f"{100 * row.difference.mean:+.1f}",
            f"[{100 * row.difference.low:+.1f}, {100 * row.difference.high:+.1f}]",
            "yes" if row.difference.is_significant else "no",
        )
        for row in comparison.rows
    ]


def _evaluated(bundles: list[str], tasks: str, data: Path | None, out: Path | None, limit: int | None) -> list[Path]:
    """Run tasks on each bundle and return the folders of the results."""
    from openafm.evaluation.harness.answerer import ModelAnswerer
    from openafm.evaluation.harness.runner import RunOptions
    from openafm.evaluation.tasks.catalog import find_task

    if out is None:
        raise UsageError(
            "compare with --tasks needs --out, a folder for results, and --data, the folder with the tasks' data"
        )
    chosen = {name: find_task(name) for name in (part.strip() for part in tasks.split(",")) if name}
    answerers = [ModelAnswerer(open_model(bundle, None, None)) for bundle in bundles]  # wrong names end it before any run
    folders = [out / f"{number}-{answerer.name}" for number, answerer in enumerate(answerers, start=1)]
    for answerer, folder in zip(answerers, folders, strict=True):
        run_and_report(answerer, dict(chosen), data or out, folder, None, RunOptions(limit=limit))
    return folders


def judge(
    a: Annotated[Path, typer.Argument(help="Folder of a run with open answers, such as of arena_hard: the baseline.")],
    b: Annotated[Path, typer.Argument(help="Folder of another run of the same task.")],
    judge: Annotated[
        str | None, typer.Option("--judge", help="The judge: a bundle, or the model's name at --base-url.")
    ] = None,
    base_url: BaseUrlOption = None,
    api_key_variable: KeyVariableOption = None,
    task: Annotated[str, typer.Option(help="The task whose answers are compared.")] = "arena_hard",
    prompts: Annotated[
        Path | None, typer.Option(help="JSON object of the judge's prompts by language; default: the built-in English one.")
    ] = None,
    grades: Annotated[
        Path | None, typer.Option(help="Human grades of the same pairs, as JSON Lines: measures the judge's agreement.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Judge this many of the first prompts only.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 8,
    out: Annotated[Path | None, typer.Option(help="Write every judgment to this JSON Lines file.")] = None,
    json: JsonOption = False,
) -> None:
    """Compare the open answers of two runs with a judge model, each pair twice with places swapped."""
    import json as json_library

    from openafm.core.files import atomic_file, data_home
    from openafm.core.progress import progress
    from openafm.evaluation.harness.answerer import ModelAnswerer
    from openafm.evaluation.harness.cache import OutputCache
    from openafm.evaluation.harness.results import open_run
    from openafm.evaluation.judged.calibration import calibrate, read_grades
    from openafm.evaluation.judged.judge import Judge, judge_all, own_prompts
    from openafm.evaluation.judged.pairs import answer_pairs
    from openafm.evaluation.judged.summary import win_rates

    if judge is None:
        raise UsageError("--judge names the model that compares: a bundle, or with --base-url a model at an endpoint")
    texts = own_prompts(prompts)
    known_grades = None if grades is None else read_grades(grades)
    pairs = answer_pairs(open_run(a), open_run(b), task)[:limit]
    cache = OutputCache(data_home() / "evaluation" / "outputs.sqlite")
    try:
        model = Judge(answerer=ModelAnswerer(open_model(judge, base_url, api_key_variable)), cache=cache, prompts=texts)
        with progress(f"judge {task}", len(pairs)) as bar:
            judgments = judge_all(model, pairs, threads, bar.update)
    finally:
        cache.close()
    if out is not None:
        with atomic_file(out, "w") as file:
            file.writelines(json_library.dumps(each.to_dict(), ensure_ascii=False) + "\n" for each in judgments)
    rates = win_rates(judgments)
    calibration = None if known_grades is None else calibrate(judgments, known_grades)
    if json:
        shown = {name: None if rate is None else rate.to_dict() for name, rate in rates.items()}
        print_json({"judge": judge, "rates": shown, "calibration": calibration and calibration.to_dict()})
        return
    rows = [
        (name, "-", "-", "-", "-", "-", "-")
        if rate is None
        else (
            name,
            rate.rate.count,
            f"{100 * rate.rate.mean:.1f}",
            f"[{100 * rate.low:.1f}, {100 * rate.high:.1f}]",
            "-" if rate.length_controlled is None else f"{100 * rate.length_controlled:.1f}",
            f"{rate.ties:.0%}",
            rate.num_nonsense,
        )
        for name, rate in rates.items()
    ]
    print_table(("part", "prompts", "b wins", "95 %", "at equal length", "ties", "no verdict"), rows)
    if rates["all"] is None:
        print_text(f"\nno reply of {judge} has a verdict; use a stronger judge")
    else:
        for note in rates["all"].notes:
            print_text(f"note: {note}")
    if calibration is not None:
        humans = (
            "" if calibration.human_agreement is None else f"; graders with each other {calibration.human_agreement:.0%}"
        )
        print_text(
            f"\nagreement with {calibration.count} human grades: {calibration.agreement:.0%}"
            f" [{calibration.low:.0%}, {calibration.high:.0%}], kappa {calibration.kappa:.2f}{humans}"
        )
