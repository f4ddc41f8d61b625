"""Register-Window against plain windows and global attention (report 2.3), at equal operations, by contrastive training.

    register_window   registers attend in every window and in global layers: our reading of the report
    plain_window      registers attend in global layers only (ViTDet with registers)
    no_registers      ViTDet as published; the mean of the patches is the image's vector
    all_global        every layer is global, fewer steps for the same operations

Half of the patches of each window are masked but in the last tenth of the steps (FLIP), so that a run sees more pairs.

`rw_gain` is the zero-shot accuracy with Register-Window minus that of plain windows: the share of held-out scenes that pick
their caption among 16, and the reverse, averaged over seeds.

    python benchmarks/register_window.py [--quick] [--json] [--finished FILE]

A full run (3 seeds, about 1.1 hours on one core) writes docs/benchmarks/register_window.json.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from shared.finished import Finished, add_finished
from shared.reporting import benchmark_parser, hand_in
from shared.vision_runs import FEW_KINDS, FEW_TOKENS, SCENE_TOKENS, SCENES, ContrastiveRuns, home, mean_accuracy

from openafm.models.vision.config import GlobalScopeConfig, ScopeConfig, VisionConfig, WindowScopeConfig
from openafm.models.vision.sizes import encoder_of, raised
from openafm.training.objectives.config import ContrastiveConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "register_window.json"


def variants(base: VisionConfig) -> dict[str, VisionConfig]:
    plain = with_scope(base, WindowScopeConfig())
    return {
        "register_window": base,
        "plain_window": plain,
        "no_registers": replace(plain, num_registers=0),
        "all_global": with_scope(base, GlobalScopeConfig()),
    }


def with_scope(vision: VisionConfig, scope: ScopeConfig) -> VisionConfig:
    """Return the encoder with another scope in the layers that are not global."""
    layers = (
        layer if isinstance(layer.scope, GlobalScopeConfig) else replace(layer, scope=scope) for layer in vision.layers
    )
    return replace(vision, layers=tuple(layers))


def measure(runs: ContrastiveRuns, base: VisionConfig, steps: int, seeds: range) -> dict[str, Any]:
    objective = ContrastiveConfig(kept=0.5, unmasked_share=0.1)  # of each window, to train on more pairs
    encoders = variants(base)
    rates = {name: runs.rate(vision, objective, f"rate-{name}") for name, vision in encoders.items()}
    scores: dict[str, list[dict[str, Any]]] = {name: [] for name in encoders}
    for seed, (name, vision) in product(seeds, encoders.items()):
        equal_steps = max(1, round(steps * base.flops(base.image_side) / vision.flops(vision.image_side)))
        scores[name].append(runs.scores(vision, objective, equal_steps, seed, f"{name}-{seed}"))
    means = {name: mean_accuracy(found) for name, found in scores.items()}
    return {
        "benchmark": "register_window",
        "peer": "the same encoder with plain windows, without registers, and with global attention",
        "setting": {
            "image_side": base.image_side,
            "documents": runs.num_documents,
            "steps": steps,
            "seeds": len(seeds),
        },
        "scores": scores,
        "figures": {
            "rw_gain": round(means["register_window"] - means["plain_window"], 4),
            **{f"zero_shot_{name}": round(mean, 4) for name, mean in means.items()},
            **{f"pairs_per_cpu_s_{name}": round(rate, 2) for name, rate in rates.items()},
            "chance": round(1 / scores["register_window"][0]["candidates"], 4),
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
            report = measure(runs, encoder_of("rw_vitdet.micro"), steps=2, seeds=range(1))
        else:
            encoder = raised(encoder_of("rw_vitdet.nano"), 336)
            runs = ContrastiveRuns(folder=folder, kinds=SCENES, count=4_000, vocabulary=SCENE_TOKENS, finished=finished)
            report = measure(runs, encoder, steps=150, seeds=range(3))
    hand_in(report, REPORT, options)


if __name__ == "__main__":
    main()
