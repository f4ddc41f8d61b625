"""The loss that a recovery adapter restores, by its initialization, against a control (report section 6).

`on_device.micro` is trained until its loss hardly decreases; ASTC 6x6 then compresses its matrices to 3.56 bits. Two
adapters of the same rank are trained for the same steps on the same data: one initialized with zero on the compressed base,
one with the top singular vectors of the base, which are removed *before* compression. The control is the *uncompressed* base
with the same adapter, trained for the same steps from both initializations: it measures what the adapter learns beyond
recovery. A gap is the held-out loss above the control with the same initialization; means over seeds, each seed's is in the
JSON.

    python benchmarks/recovery.py [--quick] [--json]

A full run writes docs/benchmarks/recovery.json. `--quick` runs the same code on few steps and claims nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from compressing.trained import FULL, QUICK, Base, Data, Size, loss, micro, prepare_data, train_adapter, train_base

from openafm.adapters.config import LoRAConfig, SingularValueStart, ZeroStart
from openafm.adapters.lora import install
from openafm.adapters.singular import adapter_bits_per_weight
from openafm.compression.astc.config import AstcConfig
from openafm.compression.astc.matrix import decode_matrix, encode_matrix
from openafm.compression.low_bit import layer_linears
from openafm.models.decoder import Decoder

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "recovery.json"
RANK = 8


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The initialization of an adapter, and whether its base is compressed."""

    start: ZeroStart | SingularValueStart
    compressed: bool


ARMS = {
    "zero_init": Arm(start=ZeroStart(), compressed=True),
    "svd_first": Arm(start=SingularValueStart(), compressed=True),
    "control_zero_init": Arm(start=ZeroStart(), compressed=False),
    "control_svd_first": Arm(start=SingularValueStart(), compressed=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        data = prepare_data(Path(folder), micro(), size)
        seeds = [measure(train_base(micro(), data, size, seed), data, size) for seed in range(size.seeds)]
    report = {
        "figures": figures(seeds),
        "peer": "the uncompressed base with the same adapter trained the same steps",
        "setting": asdict(size)
        | {
            "model": "on_device.micro",
            "rank": RANK,
            "adapter_bits_per_weight": round(adapter_bits_per_weight(micro(), LoRAConfig(rank=RANK)), 3),
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    if not options.quick:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        for key, value in report["figures"].items():
            print(f"{key:24} {value}")
    print(json.dumps(report))


def measure(base: Base, data: Data, size: Size) -> dict[str, float]:
    """Held-out losses of one base: original, compressed, and of every arm before and after training."""
    losses = {"base": base.loss, "astc": loss(compressed(copy.deepcopy(base.decoder)), data.held_out)}
    for name, arm in ARMS.items():
        decoder = copy.deepcopy(base.decoder)
        config = LoRAConfig(rank=RANK, start=arm.start)
        if isinstance(arm.start, SingularValueStart):
            install(decoder, config, base.seed)
        if arm.compressed:
            compressed(decoder)
        if isinstance(arm.start, ZeroStart):
            install(decoder, config, base.seed)
        losses[f"{name}_before"] = loss(decoder, data.held_out)
        train_adapter(decoder, base.seed, data, size)
        losses[name] = loss(decoder, data.held_out)
        print(f"seed {base.seed}  {name}: {losses[f'{name}_before']:.4f} -> {losses[name]:.4f}", file=sys.stderr, flush=True)
    return losses


@torch.no_grad()
def compressed(decoder: Decoder) -> Decoder:
    """Replace the decoder's matrices by their values after ASTC 6x6, in place."""
    for name, linear in layer_linears(decoder).items():
        matrix = encode_matrix(linear.weight.numpy(), AstcConfig(), name=name)
        linear.weight.copy_(torch.from_numpy(decode_matrix(matrix)))
    return decoder


def figures(seeds: list[dict[str, float]]) -> dict[str, Any]:
    """Means over seeds, and every loss of every seed."""

    def mean(key: str, minus: str) -> float:
        return round(statistics.mean(losses[key] - losses[minus] for losses in seeds), 5)

    return {
        "svd_first_gap": mean("svd_first", "control_svd_first"),
        "zero_init_gap": mean("zero_init", "control_zero_init"),
        "svd_first_gap_to_zero_init_control": mean("svd_first", "control_zero_init"),
        "control_change": mean("control_zero_init", "base"),
        "control_svd_first_change": mean("control_svd_first", "base"),
        "astc_gap": mean("astc", "base"),
        "svd_first_gap_before_training": mean("svd_first_before", "base"),
        "losses": {key: [round(losses[key], 5) for losses in seeds] for key in seeds[0]},
    }


if __name__ == "__main__":
    main()
