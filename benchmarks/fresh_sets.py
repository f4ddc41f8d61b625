"""Scores of a model on held-out sets whose authors did not see its training frames, beside constant and pattern baselines.

Hand-written events, labels, forms and tool requests in sixteen languages (`openafm.evaluation.fresh`); `--natural` adds
the test parts of snips, home, clinc150, banking77 and nlupp.

    python benchmarks/fresh_sets.py [--model nano] [--natural FOLDER] [--count 200] [--quick] [--json]

A full run writes docs/benchmarks/fresh_sets.json. `--quick` scores a few cases of each figure and makes no claim.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import hand_in

import openafm as fm
from openafm.evaluation.fresh.cases import Case, event_cases, form_cases, label_cases, tool_cases
from openafm.evaluation.fresh.natural import natural_cases
from openafm.evaluation.fresh.scores import constant_answer, model_answer, regex_answer, score_cases

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "fresh_sets.json"
QUICK = 8  # every how many cases one is taken in a smoke run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="name or path of a bundle")
    parser.add_argument("--natural", type=Path, help="folder of NAME-test.jsonl.gz files")
    parser.add_argument("--count", type=int, default=200, help="cases of each natural set and task")
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    cases = event_cases() + label_cases() + form_cases() + tool_cases()
    if options.natural is not None:
        cases += natural_cases(options.natural, options.count)
    hand_in(measure(options.model, cases[::QUICK] if options.quick else cases), REPORT, options)


def measure(name: str, cases: list[Case]) -> dict[str, Any]:
    """Scores by figure, of the model and of both baselines; the effect of a label's place is that of first less last."""
    model = score_cases(cases, model_answer(fm.SystemLanguageModel(bundle=name)))
    constant, regex = score_cases(cases, constant_answer), score_cases(cases, regex_answer)
    figures: dict[str, Any] = {
        figure: {
            "model": score.score,
            "constant": constant[figure].score,
            "regex": regex[figure].score,
            "cases": score.num_cases,
        }
        for figure, score in model.items()
    }
    if "label_first" in model and "label_last" in model:
        figures["label_order_effect"] = model["label_first"].score - model["label_last"].score
    return {"model": name, "figures": figures, "languages": {figure: score.languages for figure, score in model.items()}}


if __name__ == "__main__":
    main()
