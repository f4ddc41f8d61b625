"""2-bit training from the initial clips of Newton's method, OCTAV and absmax, with one scale for each matrix.

`on_device.micro` is trained in full precision, then trained further with each clip and, as a control, without compression.
The gap is the held-out loss minus the control's, on the same data; the table has every seed. `compression.py` has the longer
training and the other methods.

    python benchmarks/clip_training.py [--quick] [--json]

A full run writes docs/benchmarks/clip_training.json. `--quick` runs the same code on few steps and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from compressing.qat_rows import WEIGHTS_ONLY, arm
from compressing.rows import Setting
from compressing.trained import QUICK, Data, Size, loss, micro, prepare_data, train_base, train_further

from openafm.compression.config import AbsmaxClip, ClipConfig, NewtonClip, OctavClip

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "clip_training.json"
SIZE = Size(seeds=3, base_steps=300, extra_steps=100, held_out_rows=12, calibration_rows=1, conversations=6_000)
CLIPS: dict[str, ClipConfig] = {"newton": NewtonClip(), "octav": OctavClip(), "absmax": AbsmaxClip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else SIZE
    with tempfile.TemporaryDirectory() as folder:
        data = prepare_data(Path(folder), micro(), size)
        seeds = [measure(data, size, seed) for seed in range(size.seeds)]
    gaps = {name: [seed[name] for seed in seeds] for name in CLIPS}
    ratios = [seed["newton"] / seed["absmax"] for seed in seeds]
    report = {
        "figures": {
            "control_loss": [seed["control"] for seed in seeds],
            "loss_gap": gaps,
            "newton_over_absmax": [round(ratio, 3) for ratio in ratios],
            "newton_over_absmax_of_means": round(statistics.mean(gaps["newton"]) / statistics.mean(gaps["absmax"]), 3),
        },
        "peer": "OCTAV, absmax",
        "setting": asdict(size) | {"model": "on_device.micro", "torch": torch.__version__, "machine": platform.machine()},
    }
    if not options.quick:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        for name, values in gaps.items():
            print(f"{name:8}" + "".join(f"{value:10.4f}" for value in values) + f"   mean {statistics.mean(values):.4f}")
    print(json.dumps(report))


def measure(data: Data, size: Size, seed: int) -> dict[str, Any]:
    """Return the control's loss and the loss gap of each clip, from one base model."""
    base = train_base(micro(), data, size, seed)
    control = loss(train_further(base, data, size, None), data.held_out)
    setting = Setting(base=base, data=data, size=size)
    found = {"control": round(control, 5)}
    for name, clip in CLIPS.items():
        decoder = arm(replace(WEIGHTS_ONLY, clip=clip))(setting).decoder
        found[name] = round(loss(decoder, data.held_out) - control, 5)
    return found


if __name__ == "__main__":
    main()
