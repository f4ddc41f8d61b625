"""`openafm evaluate`: scores of a model on held-out data or on public tasks, and comparisons of runs.

`openafm evaluate NAME ...` without a subcommand is `openafm evaluate run NAME ...`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from openafm.cli.evaluation.compare import compare, judge
from openafm.cli.evaluation.features import card, features, tools
from openafm.cli.evaluation.held_out import evaluate_held_out
from openafm.cli.evaluation.runs import adapter_identity, print_results, run_and_report
from openafm.cli.evaluation.safety_scores import safety
from openafm.cli.model_options import BaseUrlOption, KeyVariableOption, ModelOption, open_model
from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, print_json, print_table
from openafm.core.errors import OpenAFMError, UsageError

DEFAULT_COMMAND = "run"


class DefaultCommandGroup(TyperGroup):
    """Run `DEFAULT_COMMAND` if the first argument is not the name of a subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=DefaultCommandGroup,
    help="Evaluate a model on held-out data or on tasks, and compare runs. `evaluate NAME` and `evaluate --tasks ...` are"
    " `evaluate run ...`.",
    no_args_is_help=False,
    rich_markup_mode=None,
)


app.command()(compare)
app.command()(features)
app.command()(tools)
app.command()(safety)
app.command()(card)
app.command()(judge)


class GateError(OpenAFMError):
    """A score is below its limit of --fail-below."""


@app.command(DEFAULT_COMMAND)
def evaluate(
    bundle: Annotated[str | None, typer.Argument(help="Bundle by name or path; default: the current model.")] = None,
    model: ModelOption = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks, separated by commas: mmlu,ifeval,...; 'list' prints all.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the data of the tasks. Without --tasks: held-out text or chats, or an image corpus for a"
            " bundle of vision.clip; default: the evaluation file of the data that the bundle was trained on."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results, samples and the report of --tasks.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each task and language.")] = None,
    languages: Annotated[str | None, typer.Option(help="Languages to evaluate, separated by commas.")] = None,
    fail_below: Annotated[
        list[str] | None, typer.Option(metavar="TASK=SCORE", help="Exit with 1 if a score is lower. May be repeated.")
    ] = None,
    base_url: BaseUrlOption = None,
    api_key_variable: KeyVariableOption = None,
    adapter: Annotated[str | None, typer.Option(help="Adapter: the name of an installed one, or a path.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    instructions: Annotated[str, typer.Option(help="Instructions before every prompt.")] = "",
    threads: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 16,
    cache: Annotated[
        Path | None, typer.Option(help="File of cached outputs; default: evaluation/outputs.sqlite in $OPENAFM_HOME.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Without --tasks: evaluate this many of the first documents only.")
    ] = None,
    answers: Annotated[
        bool, typer.Option("--answers/--no-answers", help="Without --tasks: generate and compare the answers too.")
    ] = True,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate a model on public tasks (--tasks), or a bundle on held-out data: loss, exact answers, fields.

    A run that was interrupted continues: give the same command again.
    """
    if tasks is None:
        given = [
            name
            for name, value in {"--out": out, "--limit": limit, "--fail-below": fail_below, "--base-url": base_url}.items()
            if value is not None
        ]
        if given:
            raise UsageError(f"{given[0]} needs --tasks; name tasks such as --tasks mmlu,ifeval")
        evaluate_held_out(bundle if model is None else model, data, examples, answers=answers, json=json)
        return
    if tasks == "list":
        _list_tasks(json)
        return
    from openafm.evaluation.harness.answerer import ModelAnswerer
    from openafm.evaluation.harness.runner import RunOptions
    from openafm.evaluation.tasks.catalog import find_task

    chosen = {name: find_task(name) for name in _names(tasks)}
    gates = _gates(fail_below, list(chosen))
    if data is None or out is None:
        raise UsageError("--tasks needs --data, the folder with the tasks' data, and --out, a folder for results")
    described = open_model(bundle if model is None else model, base_url, api_key_variable, adapter)
    answerer = ModelAnswerer(
        described,
        temperature=temperature,
        seed=seed,
        instructions=instructions,
        identity=adapter_identity(adapter, described),
    )
    options = RunOptions(limit=limit, languages=tuple(_names(languages or "")), threads=threads)
    results = run_and_report(answerer, chosen, data, out, cache, options)
    if json:
        print_json(
            {"model": answerer.name, "out": str(out), "tasks": {name: each.to_dict() for name, each in results.items()}}
        )
    else:
        print_results(results, out)
    missed = [f"{name} is {results[name].score.mean:.4f}, below {gate}" for name, gate in gates.items()
              if results[name].score.mean < gate]  # fmt: skip
    if missed:
        raise GateError("; ".join(missed))


def _list_tasks(json: bool) -> None:
    from openafm.evaluation.tasks.catalog import TASKS

    lines = {name: (type(task()).__doc__ or "").strip().split("\n")[0] for name, task in TASKS.items()}
    if json:
        print_json(lines)
    else:
        print_table(("task", "rules"), list(lines.items()))


def _gates(values: list[str] | None, tasks: list[str]) -> dict[str, float]:
    gates = {}
    for value in values or []:
        name, equals, score = value.rpartition("=")
        try:
            gates[name] = float(score)
        except ValueError:
            equals = ""
        if not equals or name not in tasks:
            raise UsageError(f"--fail-below {value} is not TASK=SCORE with a task of --tasks ({', '.join(tasks)})")
    return gates


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
