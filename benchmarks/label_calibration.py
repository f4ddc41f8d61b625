"""Labels by a guided response under an enum, and by `Classifier` with parts of the prior subtracted.

    training      300 requests of the training parts of sets that people wrote, one label of four: the weight is chosen here
    test          1,000 requests of their test parts
    test_again    another draw of 1,000, first scored after the weight was chosen; some requests are in both
    first, last   64 hand-written texts in sixteen languages, with the right label listed first, and last

Columns are shares of right labels: `guided`, greedy under a schema, and for each weight of the prior from 0 to 1.
`guided_ms` and `classifier_ms` are medians of one text with three labels whose instructions and prior are computed already.

    python benchmarks/label_calibration.py --natural FOLDER [BUNDLE] [--quick] [--json]

A full run writes docs/benchmarks/label_calibration.json.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from shared.reporting import benchmark_parser, hand_in

import openafm as fm
from openafm.evaluation.fresh.cases import Case, label_cases, label_schema
from openafm.evaluation.fresh.natural import natural_cases
from openafm.evaluation.fresh.scores import model_answer

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "label_calibration.json"
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
NUM_TRAINING, NUM_TEST = 60, 200  # of each of five sets
TIMED_LABELS, NUM_TIMED = ("set alarm", "play music", "weather"), 50


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("bundle", nargs="?", default="nano", metavar="BUNDLE")
    parser.add_argument("--natural", type=Path, required=True, help="folder of requests that people wrote")
    options = parser.parse_args()
    model = fm.SystemLanguageModel(bundle=options.bundle)
    texts = label_cases()
    parts = {
        "training": _labels(natural_cases(options.natural, 4 if options.quick else NUM_TRAINING, part="train")),
        "test": _labels(natural_cases(options.natural, 4 if options.quick else NUM_TEST)),
        "test_again": _labels(natural_cases(options.natural, 4 if options.quick else NUM_TEST, seed=1)),
        "first": [case for case in texts if case.figure == "label_first"],
        "last": [case for case in texts if case.figure == "label_last"],
    }
    if options.quick:
        parts = {name: cases[:8] for name, cases in parts.items()}
    rows = [{"part": name, "cases": len(cases), **shares(model, cases)} for name, cases in parts.items()]
    hand_in({"figures": {"parts": rows} | milliseconds(model), "model": model.name}, REPORT, options)


def shares(model: fm.SystemLanguageModel, cases: Sequence[Case]) -> dict[str, float]:
    """Return the share of right labels for each way."""
    answer = model_answer(model)
    right = {"guided": sum((answer(case) or {}).get("label") == case.expected for case in cases)}
    right |= {f"prior_{weight:g}": sum(is_right(model, case, weight) for case in cases) for weight in WEIGHTS}
    return {name: round(count / len(cases), 4) for name, count in right.items()}


def is_right(model: fm.SystemLanguageModel, case: Case, weight: float) -> bool:
    schema: Any = case.schema
    labels = schema["properties"]["label"]["enum"]
    classifier = fm.Classifier(labels, case.instructions, model=model, prior_weight=weight)
    return bool(classifier.classify_blocking(case.prompt).label == case.expected)


def milliseconds(model: fm.SystemLanguageModel) -> dict[str, float]:
    """Return the median times of a guided response and of a classifier, alternating."""
    classifier, schema = fm.Classifier(TIMED_LABELS, model=model), label_schema(list(TIMED_LABELS))
    times: dict[str, list[float]] = {"guided_ms": [], "classifier_ms": []}
    for number in range(NUM_TIMED):
        text = f"wake me up at {number} past six"
        session = fm.LanguageModelSession("Classify the text.", model)
        started = time.perf_counter()
        session.respond_blocking(text, json_schema=schema)
        between = time.perf_counter()
        classifier.classify_blocking(text)
        times["guided_ms"].append(between - started)
        times["classifier_ms"].append(time.perf_counter() - between)
    return {name: round(1000 * statistics.median(found), 1) for name, found in times.items()}


def _labels(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.figure == "natural_label"]


if __name__ == "__main__":
    main()
