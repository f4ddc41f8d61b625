"""Options of a benchmark, and its report: printed and stored."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def benchmark_parser(
    description: str | None, quick: str = "a smoke run of the same code, under a minute"
) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark. `quick` is the help of --quick."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    return parser


def hand_in(report: dict[str, Any], path: Path, options: argparse.Namespace) -> None:
    """Print the report (with `--json` only the JSON object); a full run also writes it to `path`.

    A list of objects is printed as one line for each of them. The printed object has the figures at its top level too, so
    that callers find them without knowing the report.
    """
    if not options.quick:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        width = max(map(len, report["figures"]), default=0)
        for key, value in report["figures"].items():
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
                print(*(f"{key}: " + "  ".join(f"{name} {cell}" for name, cell in row.items()) for row in value), sep="\n")
            else:
                print(f"{key:{width}} {value}")
    print(json.dumps(report["figures"] | report))


def with_former_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return the rows of the report at `path` whose `model` is not measured now, and then `rows`.

    Models of earlier weeks cannot be measured again where their bundles are gone.
    """
    former = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    measured = {row["model"] for row in rows}
    return [*(row for row in former if row["model"] not in measured), *map(dict, rows)]


def means_and_deviations(found: Sequence[Mapping[str, float]], suffix: str = "") -> dict[str, float]:
    """Return the mean of each figure over runs under its name and `suffix`; with `_sd` at the end the standard deviation.

    One run has no deviations.
    """
    figures: dict[str, float] = {}
    for name in found[0]:
        values = [each[name] for each in found]
        figures[f"{name}{suffix}"] = round(statistics.fmean(values), 4)
        if len(values) > 1:
            figures[f"{name}{suffix}_sd"] = round(statistics.stdev(values), 4)
    return figures
