"""`openafm export`: bundles for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_text

app = typer.Typer(help="Write bundles for other libraries.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _export() -> None:
    """Make `hf` a subcommand even while it is the only one."""


@app.command()
def hf(
    name: Annotated[str, typer.Argument(help="A bundle by name or path; not compressed.")],
    path: Annotated[Path, typer.Argument(help="The folder to write; must not exist.")],
    json: JsonOption = False,
) -> None:
    """Write a bundle of the Llama, Qwen2, Qwen3 or SmolLM3 shape as a Hugging Face folder with its chat template."""
    from openafm.bundle import open_bundle
    from openafm.bundle.hugging_face import export_hugging_face

    report = export_hugging_face(open_bundle(name), path)
    if json:
        print_json({"path": str(report.path), "family": report.family, "notes": report.notes})
        return
    for note in report.notes:
        print_text(f"note: {note}")
    print_text(f"wrote {report.path}, a {report.family} checkpoint")
