"""The initial clip of a 2-bit matrix: Newton's method against the best scale (report section 6).

1. 200,000 weights of each distribution: the squared error of the balanced set {-1.5, -0.5, 0.5, 1.5} at the scale of each
   method, relative to the smallest error on a grid refined three times; the worst of three seeds. Iterations run until the
   scale changes by less than 1e-4. Peers: Lloyd's algorithm, OCTAV (arXiv 2206.06501), absmax. The same for the unbalanced
   set {-2..1} and Newton's method, and the ratio of the best errors of both sets.
2. Rows of 64 to 4,096 weights with a scale each, both sets, Newton's method with at most 6 iterations: the worst row.

    python benchmarks/clip.py [--quick] [--json]

A full run writes docs/benchmarks/clip.json. `--quick` uses fewer weights and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openafm.compression.clip import find_scale, squared_error
from openafm.compression.config import (
    AbsmaxClip,
    BalancedLevels,
    ClipConfig,
    LevelSetConfig,
    LloydClip,
    NewtonClip,
    OctavClip,
    UnbalancedLevels,
)

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "clip.json"
SEEDS = (0, 1, 2)
ROW_LENGTHS = (64, 256, 1024, 4096)
BALANCED, UNBALANCED = BalancedLevels(), UnbalancedLevels()
METHODS: dict[str, ClipConfig] = {
    "newton": NewtonClip(),
    "lloyd": LloydClip(max_iterations=50),
    "octav": OctavClip(max_iterations=50),
    "absmax": AbsmaxClip(),
}


def _outliers(count: int) -> Tensor:
    weight = torch.randn(count)
    weight[::1000] *= 20
    return weight


def _two_outliers(count: int) -> Tensor:
    weight = torch.randn(count)
    weight[:2] = 499.0
    return weight


DISTRIBUTIONS: dict[str, Callable[[int], Tensor]] = {
    "gaussian": torch.randn,
    "laplace": lambda count: torch.distributions.Laplace(0.0, 1.0).sample((count,)),
    "student_t5": lambda count: torch.distributions.StudentT(5.0).sample((count,)),
    "student_t3": lambda count: torch.distributions.StudentT(3.0).sample((count,)),
    "gaussian_outliers": _outliers,
    "lognormal_1.15": lambda count: torch.exp(1.15 * torch.randn(count)) * torch.randn(count).sign(),
    "two_outliers_499": _two_outliers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run the same code on fewer weights")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = 20_000 if options.quick else 200_000
    rows = {name: worst([compare(draw, count, seed) for seed in SEEDS]) for name, draw in DISTRIBUTIONS.items()}
    num_rows = 10 if options.quick else 50
    report = {
        "figures": {
            "newton_mse_ratio": {name: row["newton"]["mse_ratio"] for name, row in rows.items()},
            "newton_iterations": {name: row["newton"]["iterations"] for name, row in rows.items()},
            "newton_unbalanced_mse_ratio": {name: row["newton_unbalanced_mse_ratio"] for name, row in rows.items()},
            "methods": rows,
            "newton_worst_row": {name: worst_row(draw, num_rows) for name, draw in DISTRIBUTIONS.items()},
        },
        "peer": "brute force over the scale",
        "setting": {
            "weights": count,
            "seeds": SEEDS,
            "rows": num_rows,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    if not options.quick:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        print(f"{'':20}" + "".join(f"{method:>22}" for method in [*METHODS, "unbalanced set"]))
        for name, row in rows.items():
            shown = [f"{row[m]['mse_ratio']:.4f} ({row[m]['iterations']})" for m in METHODS]
            print(f"{name:20}" + "".join(f"{cell:>22}" for cell in [*shown, f"{row['unbalanced_mse_ratio']:.4f}"]))
    print(json.dumps(report))


def worst(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The largest value of each figure over seeds."""
    figures: dict[str, Any] = {
        method: {key: max(row[method][key] for row in rows) for key in ("mse_ratio", "iterations")} for method in METHODS
    }
    return figures | {
        name: max(row[name] for row in rows) for name in ("unbalanced_mse_ratio", "newton_unbalanced_mse_ratio")
    }


def worst_row(draw: Callable[[int], Tensor], num_rows: int) -> float:
    """The largest error ratio of Newton's method over rows of all lengths and both sets."""
    largest = 0.0
    for seed, length in enumerate(ROW_LENGTHS):
        torch.manual_seed(seed)
        weight_RC = torch.stack([draw(length) for _ in range(num_rows)])
        for levels in (BALANCED, UNBALANCED):
            found_R = squared_error(weight_RC, find_scale(NewtonClip(), weight_RC, levels).scale_G, levels)
            magnitude_RC = weight_RC.abs()
            first_R, last_R = magnitude_RC.mean(1) / 8, 2.2 * magnitude_RC.amax(1)
            least_R = torch.full((num_rows,), float("inf"))
            for share in torch.linspace(0, 1, 400):
                least_R = torch.minimum(least_R, squared_error(weight_RC, first_R * (last_R / first_R) ** share, levels))
            largest = max(largest, (found_R / least_R).max().item())
    return round(largest, 5)


def compare(draw: Callable[[int], Tensor], count: int, seed: int) -> dict[str, Any]:
    """Return error ratios and iterations of every method on one draw."""
    torch.manual_seed(seed)
    weight_1N = draw(count)[None]
    best = least_error(weight_1N, BALANCED)
    found: dict[str, Any] = {}
    for name, method in METHODS.items():
        clip = find_scale(method, weight_1N, BALANCED)
        ratio = squared_error(weight_1N, clip.scale_G, BALANCED).item() / best
        found[name] = {"mse_ratio": round(ratio, 5), "iterations": clip.num_iterations}
    best_unbalanced = least_error(weight_1N, UNBALANCED)
    scale_1 = find_scale(NewtonClip(), weight_1N, UNBALANCED).scale_G
    found["newton_unbalanced_mse_ratio"] = round(squared_error(weight_1N, scale_1, UNBALANCED).item() / best_unbalanced, 5)
    found["unbalanced_mse_ratio"] = round(best_unbalanced / best, 4)
    return found


def least_error(weight_1N: Tensor, levels: LevelSetConfig) -> float:
    """Return the smallest squared error over scales up to the largest magnitude, on a geometric grid refined three times."""
    magnitude_1N = weight_1N.abs()
    low, high = 0.1 * magnitude_1N.mean(), 1.1 * magnitude_1N.amax()
    least = float("inf")
    for _ in range(3):
        grid = torch.logspace(low.log10().item(), high.log10().item(), 60)
        errors = torch.stack([squared_error(weight_1N, scale[None], levels)[0] for scale in grid])
        index = int(errors.argmin())
        least = min(least, errors[index].item())
        low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
    return least


if __name__ == "__main__":
    main()
