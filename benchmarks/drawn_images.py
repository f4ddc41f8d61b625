"""Drawn images: images per core second of each kind, and the errors that the independent checks find.

    python benchmarks/drawn_images.py [--quick] [--kinds charts,tables] [--first N] [--count N] [--workers N]
                                     [--finished FILE] [--json]

Each kind draws documents in all languages by turns, one in five of them of the held-out split. Every document is checked:
boxes against the ink in the pixels, transcriptions against the drawing commands, answers computed again. `samples` are the
documents that were checked, `errors` those in which a check found something, `dropped` those that could not be drawn, for
example because no font is installed. `images_per_core_s_KIND` counts the core seconds of drawing alone. A full run draws
10,000 documents of each kind on all cores and writes docs/benchmarks/drawn_images.json; --quick draws 50. FILE stores the
finished parts, a line for each: a run that was interrupted continues after them. Delete it when the code changes. With
--first the documents before number N are left out: they were checked in another run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.drawn_parts import Part, PartResult, draw_part
from shared.finished import whole_lines
from shared.reporting import benchmark_parser, hand_in

from openafm.core.executors import LocalConfig
from openafm.data.drawing.generators import generator_names

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "drawn_images.json"
PART = 100
SHOWN_ERRORS = 20


def main() -> None:
    parser = benchmark_parser(__doc__, "50 documents of each kind")
    parser.add_argument("--kinds", default="all", help="kinds separated by commas")
    parser.add_argument("--first", type=int, default=0, help="number of the first document; default: 0")
    parser.add_argument("--count", type=int, help="number after that of the last document of each kind")
    parser.add_argument("--workers", type=int, default=0, help="worker processes; default: one per core")
    parser.add_argument("--finished", type=Path, help="file of finished parts; default: none is stored")
    options = parser.parse_args()
    hand_in(measure(options), REPORT, options)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    kinds = generator_names() if options.kinds == "all" else tuple(options.kinds.split(","))
    count = options.count or (50 if options.quick else 10_000)
    finished = read_finished(options.finished)
    parts = [Part(kind, at, min(at + PART, count)) for at in range(options.first, count, PART) for kind in kinds]
    results: dict[str, list[PartResult]] = defaultdict(list)
    for part in parts:
        if part in finished:
            results[part.kind].append(finished[part])
    crashed: list[str] = []
    with LocalConfig(num_workers=options.workers).build() as executor:
        for outcome in executor.map(draw_part, [part for part in parts if part not in finished]):
            if outcome.result is not None:
                results[outcome.result.kind].append(outcome.result)
                store_finished(options.finished, outcome.item, outcome.result)
            elif outcome.failure is not None:
                crashed.append(f"{outcome.item}: {outcome.failure.detail}")
    everything = [result for kind in kinds for result in results[kind]]
    figures: dict[str, Any] = {
        "errors": sum(result.wrong for result in everything) + len(crashed),
        "samples": sum(result.samples for result in everything),
        "dropped": sum(sum(result.dropped.values()) for result in everything),
    }
    for kind in kinds:
        found = results[kind]
        seconds = sum(result.drawing_s for result in found)
        images = sum(result.images for result in found)
        figures[f"images_per_core_s_{kind}"] = round(images / seconds, 1) if seconds else 0.0
        figures[f"errors_{kind}"] = sum(result.wrong for result in found)
        figures[f"samples_{kind}"] = sum(result.samples for result in found)
    shown = [error for result in everything for error in result.errors][:SHOWN_ERRORS]
    return {"figures": figures, "found": crashed + shown}


def read_finished(path: Path | None) -> dict[Part, PartResult]:
    """Return the parts that a file stores; a last line that was cut by an interruption is removed."""
    if path is None or not path.is_file():
        return {}
    return {
        Part(**entry["part"]): PartResult(**entry["result"] | {"dropped": Counter(entry["result"]["dropped"])})
        for entry in whole_lines(path)
    }


def store_finished(path: Path | None, part: Part, result: PartResult) -> None:
    if path is not None:
        entry = {"part": dataclasses.asdict(part), "result": dataclasses.asdict(result)}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
