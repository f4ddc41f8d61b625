"""Output of commands: tables, or JSON with --json. Text from models and files is escaped for the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Annotated, Any

import typer

from openafm.core.terminal import escaped

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_STYLES = {"bold": "1", "dim": "2", "red": "31"}


def print_json(value: Any) -> None:
    """Print one JSON value on standard output."""
    print(escaped(json.dumps(value, ensure_ascii=False, default=str)))


def print_text(text: str) -> None:
    """Print text that may hold names of files, values of models or messages of other programs."""
    print(escaped(text))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns padded to their widest cell; columns of numbers are right-aligned. Empty names print no header."""
    cells = [list(header)] + [[_cell(value) for value in row] for row in rows]
    columns = range(len(header))
    widths = [max(len(row[column]) for row in cells) for column in columns]
    is_numeric = [all(isinstance(row[column], int | float) or row[column] == "-" for row in rows) for column in columns]
    for index, row in enumerate(cells):
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, is_numeric, strict=True)
        ]
        line = "  ".join(padded).rstrip()
        if index or line:
            print(line if index else styled(line, "bold"))


def styled(text: str, style: str, stream: IO[str] | None = None) -> str:
    """Return text in a style if the stream is a terminal and NO_COLOR is not set."""
    stream = stream or sys.stdout
    if not text or not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with a noun: `1 bundle`, `2 bundles`. `plural` is needed for irregular ones, such as `replies`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def human_number(value: float) -> str:
    """Return a number with three digits and a unit: 10.3 M."""
    for unit, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


def human_bytes(value: float) -> str:
    """Return a number of bytes with three digits and a unit: 5.6 MB."""
    return f"{human_number(value).replace(' B', ' G')}B" if value >= 1e3 else f"{value:.0f} bytes"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items() if item) or "-"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else escaped(str(value)).replace("\n", " ")
