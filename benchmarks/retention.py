"""Scores retained after compression (report Table 3), for both of the report's methods.

`on_device.nano` in full precision; the same with 2-bit weights after quantization-aware training, a 4-bit embedding, 8-bit
activations, keys and values and a recovery adapter (on-device); and in ASTC 6x6 with its top singular vectors in an adapter
that is then trained (server). Retention is the compressed score over the uncompressed one, averaged over the held-out tasks
in which the uncompressed model is at least ten points above every baseline; without such a task, over event extraction, the
models' main task. The JSON has all tasks with 95 % intervals, and their paired changes to the uncompressed model.

    python benchmarks/retention.py [--quick] [--json]
    python benchmarks/retention.py --bundles UNCOMPRESSED ON_DEVICE SERVER

A full run trains the three (hours; existing bundles in the data home are reused) or uses the given bundles, and writes
docs/benchmarks/retention.json. `--quick` runs the same code on a few steps of the micro model and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from openafm.bundle import open_bundle
from openafm.core.files import data_home
from openafm.recipes.compression.compress import compress
from openafm.recipes.compression.formats import compression_config
from openafm.recipes.compression.report import compression_report
from openafm.recipes.prepare import prepare_run
from openafm.recipes.run import run_recipe
from openafm.recipes.shipping.stages import STAGES

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "retention.json"

FEW_STEPS = {"trainer.budget": '{"type": "StepBudget", "num_steps": 3}', "trainer.evaluation": "null"}
EXAMPLES, QUICK_EXAMPLES = 50, 1
RANK = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--bundles", nargs=3, metavar=("UNCOMPRESSED", "ON_DEVICE", "SERVER"), help="trained already")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            os.environ["OPENAFM_HOME"] = folder
        bundles = options.bundles or train("micro" if options.quick else "nano", FEW_STEPS if options.quick else {})
        report = measure(bundles, QUICK_EXAMPLES if options.quick else EXAMPLES)
    if not options.quick:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        for bundle in report["figures"]["bundles"]:
            tasks = "  ".join(f"{name} {with_interval(task)}" for name, task in bundle["tasks"].items())
            print(f"{bundle['name']:32} {bundle['bits_per_weight']:6.2f} bits  loss {bundle['loss']:.3f}  {tasks}")
        print(f"on_device {report['figures']['on_device']}  server {report['figures']['server']}")
    print(json.dumps(report))


def with_interval(task: dict[str, Any]) -> str:
    low, high = task["interval"]
    return f"{task['score']:.3f} [{low:.3f}, {high:.3f}]"


FEW_EXAMPLES = json.dumps(
    [{"type": "SyntheticCorpusConfig", "name": "built_in", "learn": "answers", "synthetic": {}, "num_examples": 200}]
)


def train(size: str, changes: dict[str, str]) -> tuple[str, str, str]:
    """Train the three models stage by stage; existing stages are reused."""
    made: list[str] = []
    for recipe in STAGES:
        made.append(run(recipe, size, made[-1] if made else None, changes, recipe.removeprefix("on_device.")))
    uncompressed, on_device = made[1], made[3]
    changes_of_format = {"adapter.rank": str(RANK)} | ({"calibration.num_rows": "1"} if changes else {})
    config = compression_config("astc", changes_of_format)
    blocks = compress(open_bundle(uncompressed), config, f"{size}-astc").bundle
    return uncompressed, on_device, run("on_device.recovery_adapter", size, blocks, changes, "server_recovery")


def run(recipe: str, size: str, start: str | None, changes: dict[str, str], stage: str) -> str:
    """Run one stage and return the path of its bundle."""
    if changes and start is not None:
        changes = changes | {"corpora": FEW_EXAMPLES}
    config = prepare_run(recipe, size, start=start, changes=changes)
    print(f"{stage} at {size}", file=sys.stderr, flush=True)
    return run_recipe(config, data_home() / "runs" / "ship" / stage, f"{size}-{stage}").bundle


def measure(bundles: Sequence[str], num_examples: int) -> dict[str, Any]:
    """Return the report of the three bundles and its two figures."""
    made = compression_report(list(bundles), num_examples).to_dict()
    _, on_device, server = made["bundles"]
    well_above = on_device["retention"]["well_above_baselines"]
    counted = well_above or ["event"]  # the main task, if no task is well above its baselines
    for bundle in made["bundles"]:
        del bundle["path"]
    return {
        "figures": {
            "on_device": mean_retention(on_device, counted),
            "server": mean_retention(server, counted),
            "tasks_counted": counted,
            "well_above_baselines": well_above,
            "bundles": made["bundles"],
        },
        "peer": "the same model in full precision",
        "setting": {
            "examples_of_each_task": num_examples,
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }


def mean_retention(bundle: dict[str, Any], tasks: Sequence[str]) -> float | None:
    """Return the mean over tasks; None if the uncompressed model scores zero in one of them."""
    kept = [bundle["retention"]["tasks"].get(task) for task in tasks]
    return None if None in kept else round(sum(kept) / len(kept), 4)


if __name__ == "__main__":
    main()
