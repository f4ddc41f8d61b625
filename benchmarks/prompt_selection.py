"""Prompt selection by cohesion against random prompts at equal count, on simulated graders (report 5.2.2).

Half of the prompts are vague: graders prefer the worse answer in 45 % of their pairs, and in 5 % of those of clear prompts.
So a quarter of all labels is wrong (`shared/graders.py`). A selection model is trained on labeled pairs. It then selects a
share of other prompts, from the prompts alone. A fresh reward model is trained on the labels of the selected prompts, and
one on as many random ones:

    lift                      accuracy with selected prompts minus accuracy with random ones, on held-out pairs
    wrong_labels_selected     share of wrong labels among the selected prompts; `wrong_labels_random` of the random ones
    vague_selected            share of vague prompts among the selected ones

Means over three seeds with standard deviations. A full run takes about two minutes on one thread and writes
docs/benchmarks/prompt_selection.json. `--quick` runs a few steps.

    python benchmarks/prompt_selection.py [--quick] [--json]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from shared.graders import Line, World, differences, prompt_states, trained_model
from shared.reporting import benchmark_parser, hand_in, means_and_deviations

from openafm.models.reward import RewardModel
from openafm.rl.selection import PromptFeatures, SelectionConfig, select_at_random, select_prompts

REPORT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "prompt_selection.json"
NOISE = {"clear_noise": 0.05, "vague_noise": 0.45}
SHARE = 0.4


def features_of(model: RewardModel, lines: Sequence[Line]) -> PromptFeatures:
    mean_PD, last_PD = prompt_states(model, [line.prompt for line in lines])
    with torch.no_grad():
        cohesion_P2 = model.cohesion_logits(last_PD).sigmoid()
    return PromptFeatures(embeddings_PE=mean_PD.numpy(), cohesion_P2=cohesion_P2.numpy(), languages=("en",) * len(lines))


def measure(seed: int, *, num_lines: int, num_steps: int) -> dict[str, float]:
    world = World(seed)
    labeled = world.lines(4 * num_lines, **NOISE)
    pool = world.lines(num_lines, **NOISE)
    held_out = world.lines(1000, clear_noise=0.0, vague_noise=0.0)
    selector = trained_model(labeled, 2 * num_steps, seed, grade_weight=0.5, cohesion=True)
    features = features_of(selector, pool)
    arms = {
        "selected": select_prompts(features, SelectionConfig(share=SHARE)).chosen,
        "random": select_at_random(features.languages, SHARE, seed),
    }
    found: dict[str, float] = {}
    for name, chosen in arms.items():
        lines = [pool[index] for index in chosen]
        model = trained_model(lines, num_steps, seed, grade_weight=0.0, cohesion=False)
        found[f"accuracy_{name}"] = float((differences(model, held_out) > 0).mean())
        found[f"wrong_labels_{name}"] = float(np.mean([line.is_flipped for line in lines]))
        found[f"vague_{name}"] = float(np.mean([line.is_vague for line in lines]))
    return found | {"lift": found["accuracy_selected"] - found["accuracy_random"]}


def main() -> None:
    options = benchmark_parser(__doc__, "a few steps; claims nothing").parse_args()
    seeds = range(1 if options.quick else 3)
    size = {"num_lines": 80, "num_steps": 4} if options.quick else {"num_lines": 1500, "num_steps": 200}
    setting: dict[str, Any] = {"quick": options.quick, "seeds": len(seeds), "share": SHARE, "threads": 1, **NOISE, **size}
    figures = means_and_deviations([measure(seed, **size) for seed in seeds])
    hand_in({"figures": figures, "peer": "random prompts at equal count", "setting": setting}, REPORT, options)


if __name__ == "__main__":
    main()
