"""Accuracy and calibration of reward models on labels of simulated graders with known noise (report 5.2.2).

The report finds that graders disagree on 20 to 30 % of pairs, and trains with single-sided grading as a regularizer. Here
the better answer is known (`shared/graders.py`). Reward models are trained on labels of which 0, 20 and 30 % are wrong, with
and without the absolute grades, which are as noisy. Means over seeds of words, lines and weights:

    accuracy_noise_30               share of held-out pairs in the right order, pairs alone
    accuracy_noise_30_regularised   the same with grades
    calibration_noise_30            expected calibration error: |predicted - found| share of labels, over ten bins

A full run takes about three minutes on one thread and writes docs/benchmarks/reward_model.json. `--quick` runs a few steps.

    python benchmarks/reward_model.py [--quick] [--json]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import numpy.typing as npt
from shared.graders import World, differences, trained_model
from shared.reporting import benchmark_parser, hand_in, means_and_deviations

REPORT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "reward_model.json"
NOISES = (0.0, 0.2, 0.3)
GRADE_WEIGHT = 0.5


def calibration_error(difference_P: npt.NDArray[np.float64], flipped_P: npt.NDArray[np.bool_], num_bins: int = 10) -> float:
    """Return the expected calibration error of sigmoid(difference) as the probability that a label prefers the better."""
    predicted_P, found_P = 1 / (1 + np.exp(-difference_P)), ~flipped_P
    bins_P = np.minimum((predicted_P * num_bins).astype(int), num_bins - 1)
    errors = [
        (bins_P == b).mean() * abs(predicted_P[bins_P == b].mean() - found_P[bins_P == b].mean())
        for b in range(num_bins)
        if (bins_P == b).any()
    ]
    return float(sum(errors))


def measure(noise: float, grade_weight: float, seed: int, *, num_lines: int, num_steps: int) -> dict[str, float]:
    world = World(seed)
    lines = world.lines(num_lines, clear_noise=noise, vague_noise=noise)
    held_out = world.lines(1000, clear_noise=noise, vague_noise=noise)
    model = trained_model(lines, num_steps, seed, grade_weight=grade_weight, cohesion=False)
    difference_P = differences(model, held_out)
    flipped_P = np.array([line.is_flipped for line in held_out])
    return {
        "accuracy": float((difference_P > 0).mean()),
        "agreement": float(((difference_P > 0) != flipped_P).mean()),
        "calibration": calibration_error(difference_P, flipped_P),
    }


def main() -> None:
    options = benchmark_parser(__doc__, "a few steps; claims nothing").parse_args()
    seeds = range(1 if options.quick else 3)
    size = {"num_lines": 80, "num_steps": 4} if options.quick else {"num_lines": 800, "num_steps": 200}
    figures: dict[str, float] = {}
    setting: dict[str, Any] = {
        "quick": options.quick,
        "seeds": len(seeds),
        "grade_weight": GRADE_WEIGHT,
        "threads": 1,
        **size,
    }
    for noise in NOISES:
        for suffix, weight in (("", 0.0), ("_regularised", GRADE_WEIGHT)):
            found = [measure(noise, weight, seed, **size) for seed in seeds]
            figures |= means_and_deviations(found, f"_noise_{noise * 100:.0f}{suffix}")
    hand_in({"figures": figures, "peer": "the same model without grades", "setting": setting}, REPORT, options)


if __name__ == "__main__":
    main()
