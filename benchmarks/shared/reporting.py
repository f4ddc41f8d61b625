"""Print and store the report of a benchmark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def hand_in(report: dict[str, Any], path: Path, options: argparse.Namespace) -> None:
    """Print the report (with `--json` only the JSON object); a full run also writes it to `path`.

    The printed object has the figures at its top level too, so that callers find them without knowing the report.
    """
    if not options.quick:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        width = max(map(len, report["figures"]), default=0)
        for key, value in report["figures"].items():
            print(f"{key:{width}} {value}")
    print(json.dumps(report["figures"] | report))
