"""All compression methods in one table: held-out loss and bits, on the same trained models.

`on_device.micro` is trained on the built-in corpus until its held-out loss hardly decreases, with three seeds. Post-training
methods start from these models. Quantization-aware training continues them for some steps; its control continues them in
full precision for as many, and the loss gap is to the control. A loss is the mean over seeds, on held-out conversations; the
JSON has each seed's. Bits count codes, scales and minima, per number of the compressed part: the layers' matrices, the
embedding, or keys and values. Peers: rounding to nearest, HQQ (if the package `hqq` is installed: the extra `bench`), GPTQ.

    python benchmarks/compression.py [--quick] [--json]

A full run writes docs/benchmarks/compression.json. `--quick` runs the same code on few steps and claims nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from compressing.astc_rows import astc_rows
from compressing.post_training_rows import post_training_rows
from compressing.qat_rows import qat_rows
from compressing.rows import Row, Setting
from compressing.trained import (
    EXTRA_OPTIMIZER,
    FULL,
    QUICK,
    Data,
    Size,
    loss,
    micro,
    prepare_data,
    train_base,
    train_further,
)

from openafm.core.config import to_dict

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "compression.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else FULL

    with tempfile.TemporaryDirectory() as folder:
        data = prepare_data(Path(folder), micro(), size)
        report = measure(data, size)
    if not options.quick:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        for row in report["figures"]:
            print(
                f"{row['method']:70} {row['of']:16} {row['bits_per_weight']:6.2f} {row['loss']:8.4f} {row['loss_gap']:+8.4f}"
            )
    print(json.dumps(report))


def measure(data: Data, size: Size) -> dict[str, Any]:
    """Train the base models, then evaluate each row on all of them."""
    rows = post_training_rows() + astc_rows() + qat_rows()
    results: dict[str, list[dict[str, float]]] = {row.method: [] for row in rows}
    bases, controls = [], []
    for seed in range(size.seeds):
        base = train_base(micro(), data, size, seed)
        control = loss(train_further(base, data, size, None), data.held_out)
        for row in rows:
            results[row.method].append(judge(row, Setting(base=base, data=data, size=size), control))
        bases.append(base)
        controls.append(control)
    full_precision = [
        _figures("full precision", "layers", "base", [{"bits": 32, "loss": base.loss, "gap": 0.0} for base in bases]),
        _figures("full precision, trained on", "layers", "control", [{"bits": 32, "loss": x, "gap": 0.0} for x in controls]),
    ]
    return {
        "figures": full_precision + [_figures(row.method, row.of, row.against, results[row.method]) for row in rows],
        "peer": "rounding to nearest, GPTQ"
        + (", HQQ" if find_spec("hqq") else "; hqq is not installed, its rows are left out"),
        "setting": asdict(size)
        | {
            "model": "on_device.micro",
            "held_out_tokens": sum(batch.num_targets for batch in data.held_out),
            "fall_of_held_out_loss_in_last_tenth": [round(base.fall_of_last_tenth, 5) for base in bases],
            "extra_optimizer": to_dict(EXTRA_OPTIMIZER),
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }


def judge(row: Row, setting: Setting, control_loss: float) -> dict[str, float]:
    """Evaluate one method on one base model."""
    compressed = row.compress(setting)
    found = loss(compressed.decoder, setting.data.held_out)
    reference = setting.base.loss if row.against == "base" else control_loss
    print(f"seed {setting.base.seed}  {row.method}: {found - reference:+.4f}", file=sys.stderr, flush=True)
    return {"bits": compressed.bits_per_weight, "loss": found, "gap": found - reference}


def _figures(method: str, of: str, against: str, seeds: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "method": method,
        "of": of,
        "bits_per_weight": round(seeds[0]["bits"], 4),
        "loss": round(statistics.mean(seed["loss"] for seed in seeds), 5),
        "loss_gap": round(statistics.mean(seed["gap"] for seed in seeds), 5),
        "gap_to": against,
        "loss_per_seed": [round(seed["loss"], 5) for seed in seeds],
        "loss_gap_per_seed": [round(seed["gap"], 5) for seed in seeds],
    }


if __name__ == "__main__":
    main()
