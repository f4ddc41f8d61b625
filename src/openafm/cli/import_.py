"""`openafm import`: import open-weight models."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.bundles import check_name_is_free
from openafm.cli.output import JsonOption, print_json, print_text

app = typer.Typer(help="Import open-weight models as bundles.", no_args_is_help=True, rich_markup_mode=None)


class Compute(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@app.callback()
def _import() -> None:
    """Keep `hf` a subcommand: typer merges a single command into its group."""


@app.command()
def hf(
    path: Annotated[Path, typer.Argument(exists=True, help="Folder with config.json, *.safetensors and tokenizer.json.")],
    name: Annotated[str | None, typer.Option(help="Name of the bundle; default: the folder's name.")] = None,
    compute: Annotated[
        Compute, typer.Option(help="Compute dtype: float32 is exact, bfloat16 halves the memory.")
    ] = Compute.FLOAT32,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a bundle of this name, or hide the shipped model.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Import a local Hugging Face checkpoint (Llama, Qwen2, Qwen3, SmolLM3) with its tokenizer and chat template."""
    from openafm.bundle import bundle_place
    from openafm.bundle.hugging_face import import_hugging_face

    place = bundle_place(name or path.resolve().name)
    check_name_is_free(place.name, force)
    report = import_hugging_face(path, place, compute=compute.value)
    tools = report.bundle.template.can_call_tools
    if json:
        print_json({"bundle": str(place), "notes": report.notes, "tools": tools})
        return
    for note in report.notes:
        print_text(f"note: {note}")
    print_text(f"imported {place.name} ({place}); `openafm use {place.name}` makes it the current model")
