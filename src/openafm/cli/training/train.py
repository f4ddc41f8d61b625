"""`openafm train` and `openafm recipes`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openafm.cli.options import Invocation, PluginsOption, SetOption, parse_changes
from openafm.cli.output import JsonOption, print_json, print_table
from openafm.core.errors import UsageError
from openafm.core.processes import rank

if TYPE_CHECKING:
    from openafm.recipes.sources.data_config import DataConfig

recipes_app = typer.Typer(help="List the recipes and print their configs.", no_args_is_help=True)

RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe of `openafm recipes list`, such as on_device.sft, your own ./file.py:function, or a config: run.json."
    ),
]
SizeOption = Annotated[str | None, typer.Option(help="The model size; default: the recipe's largest.")]
FromOption = Annotated[
    str | None,
    typer.Option("--from", help="Bundle to start from, by name or path; default: the bundle of the recipe before it."),
]


def train(
    context: typer.Context,
    recipe: RecipeArgument = "",
    size: SizeOption = None,
    start: FromOption = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Your data instead of the built-in corpus: a folder or file of text or chats, packed shards (also"
            " s3://...), or a description in TOML or JSON. Default: the data of the start bundle; 'built-in': the recipe's.",
        ),
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Evaluate on this file; default: held-out documents of your data.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Use this tokenizer.json; default: the start bundle's, or a new one.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cuda, mps or cpu; default: the recipe's, auto: a GPU if there is one.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Steps between texts that the model generates from held-out prompts, for the log."),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", help="Instead of RECIPE: a file with a whole config, such as a run's run.json."),
    ] = None,
    changes: SetOption = None,
    plugins: PluginsOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder, default: runs/NAME; a run in it is resumed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the bundle; default: RECIPE-SIZE.")] = None,
    processes: Annotated[
        int, typer.Option(min=1, envvar="PET_NPROC_PER_NODE", help="Number of worker processes on this machine.")
    ] = 1,
    restarts: Annotated[
        int, typer.Option(min=0, help="How often to restart the workers after one of them dies or hangs.")
    ] = 0,
    nodes: Annotated[
        int, typer.Option(min=1, envvar="PET_NNODES", help="Number of machines; run the same command on each.")
    ] = 1,
    node_rank: Annotated[
        int, typer.Option(min=0, envvar="PET_NODE_RANK", help="Which of the machines this is, counted from 0.")
    ] = 0,
    rendezvous: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="PET_RDZV_ENDPOINT", help="Address of machine 0, with a free port.")
    ] = "",
    join_seconds: Annotated[float, typer.Option(min=1, help="How long to wait for the other machines.")] = 600.0,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare all packed shards with their digests first; default: each when it is read."),
    ] = False,
    json: JsonOption = False,
) -> int:
    """Run a recipe from raw data to a bundle. Repeat the command to resume after an interruption."""
    from openafm.bundle import bundle_place
    from openafm.recipes.catalog import find_recipe
    from openafm.recipes.prepare import prepare_run
    from openafm.recipes.run import run_recipe
    from openafm.training.distributed.launch import is_launched, launch
    from openafm.training.distributed.nodes import NodesConfig
    from openafm.training.observability.curves import draw

    if (processes > 1 or restarts or nodes > 1) and not is_launched():
        invocation: Invocation = context.obj
        machines = NodesConfig(nodes=nodes, node_rank=node_rank, rendezvous=rendezvous, join_seconds=join_seconds)
        return launch(
            invocation.run,
            invocation.arguments,
            processes=processes,
            restarts=restarts,
            modules=("openafm.recipes.run", "openafm.training.run"),
            nodes=machines,
        )
    if (config_file is None) == (not recipe):
        raise UsageError("name one recipe, as in openafm train on_device.sft, or a config with --config run.json")
    recipe = recipe or str(config_file)
    found = find_recipe(recipe)
    name = name or found.default_name(found.checked_size(size))
    bundle_place(name)  # raises for an invalid name before the training
    described = own_data(data, evaluation, tokenizer)
    changed = {} if samples is None else {"samples": f'{{"every_steps": {samples}}}'}
    changed |= ({} if device is None else {"trainer.device.kind": device}) | parse_changes(changes)
    config = prepare_run(recipe, size, start=start, data=described, changes=changed, plugins=plugins or ())
    result = run_recipe(config, output or Path("runs") / name, name, verify_data=verify)
    if rank():
        return 0
    for picture in draw(Path(result.run_folder)):
        print(f"drawn: {picture}", file=sys.stderr)
    if json:
        print_json(result.to_dict())
    else:
        print_table(("", ""), list(result.to_dict().items()))
    return 0


def own_data(data: str | None, evaluation: Path | None, tokenizer: Path | None) -> Path | DataConfig | None:
    """Return the user's data with the evaluation file and the tokenizer of the options.

    Raises:
        UsageError: --eval or --tokenizer without --data.
    """
    from openafm.recipes.sources.own_data import BUILT_IN, read_data

    if data is None or data == BUILT_IN:
        if evaluation is not None or tokenizer is not None:
            raise UsageError("--eval and --tokenizer belong to your own data; name it with --data")
        return None if data is None else Path(data)
    return read_data(data, evaluation, tokenizer)


@recipes_app.command("list")
def list_recipes(json: JsonOption = False) -> None:
    """List the recipes with their sizes."""
    from openafm.recipes.catalog import RECIPES

    listing = [
        {
            "name": r.name,
            "sizes": list(r.sizes),
            "starts_from": r.starts_from,
            "taught_by": r.taught_by,
            "sees_with": r.sees_with,
            "summary": r.summary,
        }
        for r in RECIPES
    ]
    if json:
        print_json(listing)
    else:
        rows = [(r.name, " ".join(r.sizes), r.starts_from or "-", r.summary) for r in RECIPES]
        print_table(("recipe", "sizes", "starts from", "summary"), rows)


@recipes_app.command("show")
def show_recipe(
    recipe: RecipeArgument, size: SizeOption = None, changes: SetOption = None, plugins: PluginsOption = None
) -> None:
    """Print the resolved config of a recipe as JSON."""
    from openafm.core.config import dump
    from openafm.recipes.prepare import prepare_run

    print(dump(prepare_run(recipe, size, changes=parse_changes(changes), plugins=plugins or ())), end="")
