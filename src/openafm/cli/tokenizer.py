"""`openafm tokenizer`: train, extend, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openafm.cli.output import JsonOption, print_json, print_table

app = typer.Typer(help="Train and extend byte-level BPE vocabularies.", no_args_is_help=True)

TextsArgument = Annotated[Path, typer.Argument(help="A file or folder of .txt, .md or .jsonl(.gz) text.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="The tokenizer.json to write.")]
