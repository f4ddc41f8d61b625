"""Scores of a model on held-out sets whose authors did not see its training frames, beside constant and pattern baselines.

Hand-written events, labels, forms and tool requests in sixteen languages (`openafm.evaluation.fresh`); `--natural` adds
the test parts of snips, home, clinc150, banking77 and nlupp.

    python benchmarks/fresh_sets.py [--model nano] [--natural FOLDER] [--count 200] [--quick] [--json]

A full run writes docs/benchmarks/fresh_sets.json. `--quick` scores a few cases of each figure and makes no claim.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.evaluation.fresh.cases import Case
from openafm.evaluation.fresh.figures import NUM_NATURAL_CASES, fresh_cases, fresh_figures

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "fresh_sets.json"
QUICK = 8  # every how many cases one is taken in a smoke run


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="nano", help="name or path of a bundle")
    parser.add_argument("--natural", type=Path, help="folder of NAME-test.jsonl.gz files")
    parser.add_argument("--count", type=int, default=NUM_NATURAL_CASES, help="cases of each natural set and task")
    options = parser.parse_args()
    cases = fresh_cases(options.natural, options.count)
    hand_in(measure(options.model, cases[::QUICK] if options.quick else cases), REPORT, options)


def measure(name: str, cases: list[Case]) -> dict[str, Any]:
    """Scores by figure, of the model and of both baselines; the effect of a label's place is that of first less last."""
    found = fresh_figures(fm.SystemLanguageModel(bundle=name), cases)
    figures: dict[str, Any] = {figure: asdict(score) for figure, score in found.items()}
    languages = {figure: scores.pop("languages") for figure, scores in figures.items()}
    if "label_first" in found and "label_last" in found:
        figures["label_order_effect"] = found["label_first"].model - found["label_last"].model
    return {"model": name, "figures": figures, "languages": languages}


if __name__ == "__main__":
    main()
