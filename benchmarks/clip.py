"""Where the clip of a 2-bit matrix starts: Newton's method against the best scale there is (report section 6).

On a million weights of each distribution, the squared error of the balanced set {-1.5, -0.5, 0.5, 1.5} at the scale that a
method finds, as a ratio to the least one, which brute force finds on a grid refined three times. Iterations run until the
scale moves by less than 1e-4. Peers: Lloyd's algorithm, OCTAV (arXiv 2206.06501), absmax; and the unbalanced set {-2..1} at
its own best scale.

    python benchmarks/clip.py [--quick] [--json]

A full run writes docs/benchmarks/clip.json. `--quick` takes fewer weights and claims nothing.
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
SEED = 0
BALANCED, UNBALANCED = BalancedLevels(), UnbalancedLevels()
METHODS: dict[str, ClipConfig] = {
    "newton": NewtonClip(max_iterations=50),
    "lloyd": LloydClip(max_iterations=50),
    "octav": OctavClip(max_iterations=50),
    "absmax": AbsmaxClip(),
}


def _outliers(count: int) -> Tensor:
    weight = torch.randn(count)
    weight[::1000] *= 20
    return weight


DISTRIBUTIONS: dict[str, Callable[[int], Tensor]] = {
    "gaussian": torch.randn,
    "laplace": lambda count: torch.distributions.Laplace(0.0, 1.0).sample((count,)),
    "student_t5": lambda count: torch.distributions.StudentT(5.0).sample((count,)),
    "student_t3": lambda count: torch.distributions.StudentT(3.0).sample((count,)),
    "gaussian_outliers": _outliers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = 50_000 if options.quick else 1_000_000
    rows = {name: compare(draw, count) for name, draw in DISTRIBUTIONS.items()}
    report = {
        "figures": {
            "newton_mse_ratio": {name: row["newton"]["mse_ratio"] for name, row in rows.items()},
            "newton_iterations": {name: row["newton"]["iterations"] for name, row in rows.items()},
            "methods": rows,
        },
        "peer": "brute force over the scale",
        "setting": {"weights": count, "seed": SEED, "torch": torch.__version__, "machine": platform.machine()},
    }
    if not options.quick:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        print(f"{'':20}" + "".join(f"{method:>22}" for method in [*METHODS, "unbalanced set"]))
        for name, row in rows.items():
            shown = [f"{row[m]['mse_ratio']:.4f} ({row[m]['iterations']})" for m in METHODS]
            print(f"{name:20}" + "".join(f"{cell:>22}" for cell in [*shown, f"{row['unbalanced_mse_ratio']:.4f}"]))
    print(json.dumps(report))


def compare(draw: Callable[[int], Tensor], count: int) -> dict[str, Any]:
    """Error ratios and iterations of every method on one draw."""
    torch.manual_seed(SEED)
    weight_1N = draw(count)[None]
    best = least_error(weight_1N, BALANCED)
    found: dict[str, Any] = {}
    for name, method in METHODS.items():
        clip = find_scale(method, weight_1N, BALANCED)
        ratio = squared_error(weight_1N, clip.scale_G, BALANCED).item() / best
        found[name] = {"mse_ratio": round(ratio, 5), "iterations": clip.num_iterations}
    found["unbalanced_mse_ratio"] = round(least_error(weight_1N, UNBALANCED) / best, 4)
    return found


def least_error(weight_1N: Tensor, levels: LevelSetConfig) -> float:
    """The least squared error over scales from 0.2 to 5 mean magnitudes, on a grid refined three times."""
    low, high = 0.2 * weight_1N.abs().mean(), 5 * weight_1N.abs().mean()
    least = float("inf")
    for _ in range(3):
        grid = torch.linspace(low, high, 60)
        errors = torch.stack([squared_error(weight_1N, scale[None], levels)[0] for scale in grid])
        index = int(errors.argmin())
        least = min(least, errors[index].item())
        low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
    return least


if __name__ == "__main__":
    main()
