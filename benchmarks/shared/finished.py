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
    """Results by name, a line of JSON each in `path`; without a path nothing is stored.

    A result belongs to a setting, which its caller describes: a run with other sizes is repeated.
    """

    path: Path | None = None
    results: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.is_file():
            return
        self.results = dict(whole_lines(self.path))

    def result(self, name: str, setting: object, run: Callable[[], Any]) -> Any:
        """Return the stored result of a name and a setting, or that of `run`, which is stored."""
        key = f"{name} {setting}"
        if key not in self.results:
            self.results[key] = run()
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self.results[key]]) + "\n")
        return self.results[key]


def whole_lines(path: Path) -> list[Any]:
    """Return the values of a file of JSON lines. A last line that an interruption has cut is removed from the file."""
    text = path.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def add_finished(parser: argparse.ArgumentParser) -> None:
    """Add the option of a file of finished runs."""
    parser.add_argument(
        "--finished", type=Path, help="file of finished runs, which are not repeated; delete it when the code changes"
    )
