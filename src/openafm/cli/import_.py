"""`openafm import`: models of other houses."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json

app = typer.Typer(help="Turn models of other houses into bundles.", no_args_is_help=True, rich_markup_mode=None)


class Compute(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@app.callback()
def _import() -> None:
    """Keeps `hf` a command of its own, however many there are."""


@app.command()
def hf(
    path: Annotated[Path, typer.Argument(help="Folder with config.json, *.safetensors and tokenizer.json.")],
    name: Annotated[str | None, typer.Option(help="Name of the bundle; by default the folder's.")] = None,
    compute: Annotated[
        Compute, typer.Option(help="float32 computes exactly what the weights say, bfloat16 takes half the memory.")
    ] = Compute.FLOAT32,
    json: JsonOption = False,
) -> None:
    """Import a local Hugging Face checkpoint (Llama, Qwen2, Qwen3, SmolLM3) with its tokenizer and chat template."""
    from openafm.bundle import bundle_place
    from openafm.bundle.hugging_face import import_hugging_face

    place = bundle_place(name or path.resolve().name)
    report = import_hugging_face(path, place, compute=compute.value)
    tools = report.bundle.template.can_call_tools
    if json:
        print_json({"bundle": str(place), "notes": report.notes, "tools": tools})
        return
    for note in report.notes:
        print(f"note: {note}")
    print(f"{place.name} is a bundle now ({place}); `openafm use {place.name}` makes it the one that answers")
