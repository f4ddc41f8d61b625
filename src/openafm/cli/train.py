"""`openafm train` and `openafm recipes`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table
from openafm.core.errors import UsageError
from openafm.core.processes import rank

recipes_app = typer.Typer(help="The runs of the report, as configs.", no_args_is_help=True)

RecipeArgument = Annotated[
    str, typer.Argument(help="A recipe, such as on_device.pretrain; `openafm recipes list` names them.")
]
SizeOption = Annotated[str, typer.Option(help="The size to train.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Change one value: trainer.optimizer.learning_rate=3e-4. May be repeated.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", help="Bundle to start from, by name or path; by default the one that the recipe before has left."
    ),
]


class SetOptionError(UsageError):
    """A --set that is not KEY=VALUE."""


def train(
    context: typer.Context,
    recipe: RecipeArgument,
    size: SizeOption = "nano",
    start: FromOption = None,
    data: Annotated[
        Path | None, typer.Option(help="Train on this folder of text or JSONL instead of the built-in corpus.")
    ] = None,
    changes: SetOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder, by default runs/NAME; a run found there is resumed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the bundle made; by default RECIPE-SIZE.")] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Share the run out to so many processes of this machine; for several, use torchrun.")
    ] = 1,
    restarts: Annotated[
        int, typer.Option(min=0, help="Start the processes again, at most so often, when one of them dies or hangs.")
    ] = 0,
    json: JsonOption = False,
) -> int:
    """Run a recipe from raw data to a bundle. Killed at any point, the same command goes on where it stopped."""
    from openafm.bundle import bundle_place
    from openafm.recipes.run import default_name, prepare_run, run_recipe
    from openafm.training.distributed.launch import is_launched, launch
    from openafm.training.observability.curves import draw

    if (processes > 1 or restarts) and not is_launched():
        from openafm.cli.main import run

        modules = ("openafm.recipes.run", "openafm.training.run")
        return launch(run, context.obj, processes=processes, restarts=restarts, modules=modules)
    if name is not None:
        bundle_place(name)  # a name that cannot be one is told before the training, not after it
    config = prepare_run(recipe, size, start=start, data=data, changes=parse_changes(changes))
    name = name or default_name(recipe, size)
    result = run_recipe(config, output or Path("runs") / name, name)
    if rank():
        return 0  # the first process tells
    for picture in draw(Path(result.run_folder)):
        print(f"drawn: {picture}", file=sys.stderr)
    if json:
        print_json(result.to_dict())
    else:
        print_table(("", ""), list(result.to_dict().items()))
    return 0


@recipes_app.command("list")
def list_recipes(json: JsonOption = False) -> None:
    """List the recipes with their sizes."""
    from openafm.recipes.config import all_recipes

    listing = [
        {
            "name": r.name,
            "sizes": list(r.sizes),
            "starts_from": r.starts_from,
            "taught_by": r.taught_by,
            "summary": r.summary,
        }
        for r in all_recipes()
    ]
    if json:
        print_json(listing)
    else:
        print_table(
            ("recipe", "sizes", "starts from", "summary"),
            [(r["name"], " ".join(r["sizes"] or []), r["starts_from"] or "-", r["summary"]) for r in listing],
        )


@recipes_app.command("show")
def show_recipe(recipe: RecipeArgument, size: SizeOption = "nano", changes: SetOption = None) -> None:
    """Print the resolved config of a recipe as JSON."""
    from openafm.core.config import dump
    from openafm.recipes.run import prepare_run

    print(dump(prepare_run(recipe, size, changes=parse_changes(changes))), end="")


def parse_changes(changes: list[str] | None) -> dict[str, str]:
    """The values of --set by dotted key."""
    parsed = {}
    for change in changes or []:
        key, equals, value = change.partition("=")
        if not equals:
            raise SetOptionError(f"--set {change} is not KEY=VALUE, such as trainer.optimizer.learning_rate=3e-4")
        parsed[key] = value
    return parsed
