"""Recall and precision of the privacy filter on generated, labelled cases, and its speed.

Half of the cases hold personal data in one of 16 languages; the others resemble it: wrong check digits, order numbers,
versions, dates, prices, private addresses. The cases are this project's own, so the figures describe how the rules work
together and not how often such data occurs on the web.

    python benchmarks/privacy.py [--quick] [--json]

A full run writes docs/benchmarks/privacy.json.
"""

from __future__ import annotations

import time
from pathlib import Path

from shared.reporting import benchmark_parser, hand_in

from openafm.data.filtering.privacy import KINDS, PrivacyConfig
from openafm.data.filtering.privacy.cases import Case, generate_cases, measure
from openafm.data.filtering.privacy.finder import Finder

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "privacy.json"
FULL, QUICK = 20_000, 2_000
TYPICAL_CHARACTERS = 5_000


def characters_per_second(finder: Finder, cases: list[Case]) -> float:
    """Return the speed in documents of a typical length: sentences without digits, and one case in each."""
    filler = "The town has a small museum, and it is open on most days of the week. " * (TYPICAL_CHARACTERS // 71)
    documents = [(filler + case.text, case.language) for case in cases]
    start = time.process_time()
    for text, language in documents:
        finder.find(text, language)
    return sum(len(text) for text, _ in documents) / (time.process_time() - start)


def main() -> None:
    options = benchmark_parser(__doc__, f"{QUICK:,} instead of {FULL:,} cases").parse_args()

    cases = generate_cases(QUICK if options.quick else FULL)
    finder = Finder(KINDS, PrivacyConfig().phone_regions)
    kinds = measure(finder, cases)
    speed = characters_per_second(finder, cases[:500])
    figures = {
        "cases": len(cases),
        "recall": kinds["all"]["recall"],
        "precision": kinds["all"]["precision"],
        "documents_per_core_s": speed / TYPICAL_CHARACTERS,
        "kinds": kinds,
    }
    hand_in({"figures": figures, "setting": {"characters_of_a_document": TYPICAL_CHARACTERS}}, REPORT, options)


if __name__ == "__main__":
    main()
