"""Results of the finished runs of a benchmark in a file: one that was interrupted continues after them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Finished:
    """Results by name, a line of JSON each in `path`; without a path nothing is stored."""

    path: Path | None = None
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():
            lines = self.path.read_text("utf-8").splitlines(keepends=True)
            # An interruption may have cut the last line.
            self.results = {name: result for line in lines if line.endswith("\n") for name, result in [json.loads(line)]}

    def result(self, name: str, run: Callable[[], Any]) -> Any:
        """Return the stored result, or that of `run`, which is stored."""
        if name not in self.results:
            self.results[name] = run()
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, self.results[name]]) + "\n")
        return self.results[name]


def add_finished(parser: argparse.ArgumentParser) -> None:
    """Add the option of a file of finished runs."""
    parser.add_argument(
        "--finished", type=Path, help="file of finished runs, which are not repeated; delete it when the code changes"
    )
