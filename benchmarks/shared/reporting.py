"""Print and store the report of a benchmark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


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
