"""`openafm evaluate features`, `tools` and `card`: our own held-out sets, and results as a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.evaluate_runs import adapter_identity, print_results, run_and_report
from openafm.cli.model_options import BaseUrlOption, KeyVariableOption, ModelOption, open_model
from openafm.cli.output import JsonOption, print_json, print_text

OutOption = Annotated[Path, typer.Option(help="Folder for results, samples and the report.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Items of each task and language.")]
AdapterOption = Annotated[str | None, typer.Option(help="Adapter: the name of an installed one, or a path.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Requests at once.")]


def features(
    out: OutOption,
    model: ModelOption = None,
    limit: LimitOption = None,
    base_url: BaseUrlOption = None,
    api_key_variable: KeyVariableOption = None,
    adapter: AdapterOption = None,
    threads: ThreadsOption = 16,
    json: JsonOption = False,
) -> None:
    """Evaluate features on our own sets: events, extraction, labels, summaries, rewriting, languages, long contexts."""
    from openafm.evaluation.tasks.catalog import FEATURES

    names = [name for name in FEATURES if name not in ("tools", "tool_call")]
    _evaluate(names, out, model, limit, base_url, api_key_variable, adapter, threads, json=json)


def tools(
    out: OutOption,
    model: ModelOption = None,
    limit: LimitOption = None,
    base_url: BaseUrlOption = None,
    api_key_variable: KeyVariableOption = None,
    adapter: AdapterOption = None,
    threads: ThreadsOption = 16,
    json: JsonOption = False,
) -> None:
    """Evaluate tool use on our own sets: single calls in sixteen languages, and a stateful phone with milestones."""
    _evaluate(["tool_call", "tools"], out, model, limit, base_url, api_key_variable, adapter, threads, json=json)


def card(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs of one model.")],
    json: JsonOption = False,
) -> None:
    """Print the results of runs as the evaluation part of a model card, in Markdown."""
    from openafm.evaluation.harness.card import card_text
    from openafm.evaluation.harness.results import open_run

    opened = [open_run(path) for path in runs]
    text = card_text(opened)
    if json:
        print_json({"model": opened[0].model, "card": text})
    else:
        print_text(text)


def _evaluate(
    names: list[str],
    out: Path,
    model: str | None,
    limit: int | None,
    base_url: str | None,
    api_key_variable: str | None,
    adapter: str | None,
    threads: int,
    *,
    json: bool,
) -> None:
    from openafm.evaluation.harness.answerer import ModelAnswerer
    from openafm.evaluation.harness.runner import RunOptions
    from openafm.evaluation.tasks.catalog import find_task

    described = open_model(model, base_url, api_key_variable, adapter)
    answerer = ModelAnswerer(described, identity=adapter_identity(adapter, described))
    tasks = {name: find_task(name) for name in names}
    results = run_and_report(answerer, tasks, out, out, None, RunOptions(limit=limit, threads=threads))
    if json:
        print_json(
            {"model": answerer.name, "out": str(out), "tasks": {name: each.to_dict() for name, each in results.items()}}
        )
    else:
        print_results(results, out)
