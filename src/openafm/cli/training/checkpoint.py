"""`openafm checkpoint`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.options import PluginsOption
from openafm.cli.output import JsonOption, print_json, print_table

app = typer.Typer(help="List and consolidate the checkpoints of a run, running or finished.", no_args_is_help=True)

RunArgument = Annotated[Path, typer.Argument(exists=True, help="Run folder, such as runs/server.pretrain-nano.")]


@app.command("list")
def list_all(run: RunArgument, plugins: PluginsOption = None, json: JsonOption = False) -> None:
    """Verify and list the checkpoints of a run."""
    from openafm.training.checkpoints.listing import list_checkpoints

    listing = list_checkpoints(run)
    if json:
        print_json([asdict(checkpoint) for checkpoint in listing])
        return
    rows = [
        (
            found.name,
            "-" if found.step is None else found.step,
            found.num_bytes,
            found.format or "-",
            found.layout or "-",
            "-" if found.held_out_loss is None else f"{found.held_out_loss:.4f}",
            "ok" if found.damage is None else f"damaged: {found.damage}",
        )
        for found in listing
    ]
    print_table(("name", "step", "bytes", "tensors", "layout", "held-out loss", "state"), rows)


@app.command()
def consolidate(
    run: RunArgument,
    name: Annotated[str | None, typer.Option(help="Name of the bundle; default: the folder's name.")] = None,
    plugins: PluginsOption = None,
    json: JsonOption = False,
) -> None:
    """Write a bundle from the newest undamaged checkpoint of a run, running or finished."""
    from openafm.recipes.consolidation import consolidate_run

    made = consolidate_run(run, name or run.resolve().name)
    if json:
        print_json(asdict(made))
    else:
        print_table(("", ""), list(asdict(made).items()))
