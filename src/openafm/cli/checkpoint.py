"""`openafm checkpoint`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table

app = typer.Typer(help="What a run has saved, while it goes on or after it.", no_args_is_help=True)

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run, such as runs/server.pretrain-nano.")]


@app.command("list")
def list_all(run: RunArgument, json: JsonOption = False) -> None:
    """List the checkpoints of a run, verifying every digest."""
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
            "whole" if found.damage is None else f"damaged: {found.damage}",
        )
        for found in listing
    ]
    print_table(("name", "step", "bytes", "tensors", "layout", "state"), rows)


@app.command()
def consolidate(
    run: RunArgument,
    name: Annotated[str | None, typer.Option(help="Name of the bundle made; by default that of the folder.")] = None,
    json: JsonOption = False,
) -> None:
    """Make a bundle of the newest whole checkpoint of a run, finished or not, however many processes wrote it."""
    from openafm.recipes.consolidation import consolidate_run

    made = consolidate_run(run, name or run.resolve().name)
    if json:
        print_json(asdict(made))
    else:
        print_table(("", ""), list(asdict(made).items()))
