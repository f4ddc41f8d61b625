"""Output of commands: tables, or JSON with --json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Print one JSON value on standard output."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns padded to their widest cell, numbers right-aligned."""
    cells = [list(header)] + [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for index, row in enumerate(cells):
        padded = [
            text.rjust(width) if index and isinstance(rows[index - 1][column], int | float) else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
