"""Verdicts of openafm's IFEval checks and of the published ones (in lm-evaluation-harness) on generated responses.

    python benchmarks/ifeval_checkers.py [--data ../shared/data/evaluation] [--quick] [--json]

A full run writes docs/benchmarks/ifeval_checkers.json. `--quick` judges 10 responses to each of the 541 prompts, a full run
50. Each instruction is judged strictly and loosely; a difference in either is a disagreement.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from harness.ifeval_peer import peer
from harness.ifeval_responses import responses
from harness.peer_tasks import rows
from shared.reporting import benchmark_parser, hand_in

from openafm.evaluation.tasks.ifeval_rules import CHECKS, follows, has_published_sentences, variants

DATA = Path(__file__).parents[2] / "shared" / "data" / "evaluation"
REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "ifeval_checkers.json"


def main() -> None:
    parser = benchmark_parser(__doc__, "10 responses to each prompt")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the evaluation sets")
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        report = measure(options.data, 10 if options.quick else 50)
    hand_in(report, REPORT, options)


def measure(data: Path, per_prompt: int) -> dict[str, Any]:
    """Count the disagreements, and how many verdicts were positive."""
    logging.disable(logging.ERROR)
    published = peer()
    disagreements: Counter[str] = Counter()
    positive: Counter[str] = Counter()
    num_responses = num_verdicts = 0
    for number, row in enumerate(rows(data / "ifeval" / "input_data.jsonl")):
        asked = published.InputExample(**{name: row[name] for name in ("key", "instruction_id_list", "prompt", "kwargs")})
        for text in responses(row, per_prompt, number):
            num_responses += 1
            strict = published.test_instruction_following_strict(asked, text).follow_instruction_list
            loose = published.test_instruction_following_loose(asked, text).follow_instruction_list
            for index, (name, given) in enumerate(zip(row["instruction_id_list"], row["kwargs"], strict=True)):
                own = follows(name, given, text), any(follows(name, given, each) for each in variants(text))
                positive[name] += own[0]
                num_verdicts += 1
                if own != (strict[index], loose[index]):
                    disagreements[name] += 1
        if number % 100 == 0:
            print(f"{number} prompts", file=sys.stderr)
    figures = {
        "verdicts": num_verdicts,
        "followed": sum(positive.values()),
        "kinds": len(CHECKS),
        "sentence_model": "punkt_tab" if has_published_sentences() else "common abbreviations, on both sides",
        "disagreements_by_kind": dict(disagreements),
        "followed_by_kind": dict(sorted(positive.items())),
    }
    return {"disagreements": sum(disagreements.values()), "responses": num_responses, "figures": figures}


if __name__ == "__main__":
    main()
