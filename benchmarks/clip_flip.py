"""FLIP masking in contrastive pre-training (report 4.2): pairs per CPU-second, and zero-shot accuracy at equal CPU time.

Half and three quarters of the patches are masked, against none. `flip_ratio` is the pairs per CPU-second with half of the
patches masked, divided by those without masking. Then all train for the CPU time of the steps without masking; the masked
runs encode all patches in their last tenth. `zero_shot_*` is the share of held-out scenes that pick their caption among 16,
and the reverse, averaged over seeds; their objects and wordings are held out.

    python benchmarks/clip_flip.py [--quick] [--json] [--finished FILE]

A full run (3 seeds, about an hour on one core) writes docs/benchmarks/clip_flip.json.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.finished import Finished, add_finished
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import FEW_KINDS, FEW_TOKENS, SCENE_TOKENS, SCENES, ContrastiveRuns, home, mean_accuracy

from openafm.models.vision.sizes import encoder_of
from openafm.training.objectives.config import ContrastiveConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "clip_flip.json"
KEPT = (1.0, 0.5, 0.25)


def measure(runs: ContrastiveRuns, encoder: str, steps: int, seeds: range) -> dict[str, Any]:
    vision = encoder_of(encoder)
    objectives = {kept: ContrastiveConfig(kept=kept, unmasked_share=0.0 if kept == 1 else 0.1) for kept in KEPT}
    rates = {kept: runs.rate(vision, objective, f"rate-{kept}") for kept, objective in objectives.items()}
    scores: dict[float, list[dict[str, Any]]] = {kept: [] for kept in KEPT}
    for seed, (kept, objective) in product(seeds, objectives.items()):
        # A tenth of the steps encodes all patches, at the rate without masking.
        share = 0.0 if kept == 1 else objective.unmasked_share
        equal_steps = round(steps / (share + (1 - share) * rates[1.0] / rates[kept]))
        scores[kept].append(runs.scores(vision, objective, equal_steps, seed, f"kept-{kept}-{seed}"))
    return {
        "benchmark": "clip_flip",
        "peer": "the same encoder, data and CPU time without masking",
        "setting": {
            "encoder": encoder,
            "documents": runs.num_documents,
            "steps_unmasked": steps,
            "seeds": len(seeds),
        },
        "scores": {f"{kept:g}": found for kept, found in scores.items()},
        "figures": {
            "flip_ratio": round(rates[0.5] / rates[1.0], 2),
            "flip_ratio_75": round(rates[0.25] / rates[1.0], 2),
            **{f"pairs_per_cpu_s_kept_{kept:g}": round(rate, 2) for kept, rate in rates.items()},
            **{f"zero_shot_kept_{kept:g}": round(mean_accuracy(found), 4) for kept, found in scores.items()},
            "chance": round(1 / scores[1.0][0]["candidates"], 4),
        },
    }


def main() -> None:
    parser = benchmark_parser(__doc__, "few drawings and steps, one seed; claims nothing")
    add_finished(parser)
    options = parser.parse_args()
    finished = Finished(path=options.finished)
    with home() as folder:
        if options.quick:
            runs = ContrastiveRuns(folder=folder, kinds=FEW_KINDS, count=20, vocabulary=FEW_TOKENS, finished=finished)
            report = measure(runs, "rw_vitdet.micro", steps=2, seeds=range(1))
        else:
            runs = ContrastiveRuns(folder=folder, kinds=SCENES, count=4_000, vocabulary=SCENE_TOKENS, finished=finished)
            report = measure(runs, "rw_vitdet.nano", steps=200, seeds=range(3))
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
