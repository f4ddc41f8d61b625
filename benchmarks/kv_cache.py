"""Keys and values in few bits: what the held-out loss changes by (report section 6).

`on_device.micro` is trained on the built-in corpus, with three seeds; then keys and values pass the attention's slot, where
they are rounded after QK-norm and rotation: symmetric, one fp16 scale for each token and head, and bf16 to compare with.
Changes are to the loss with fp32 keys and values, on the same held-out tokens, the mean over seeds.

    python benchmarks/kv_cache.py [--quick] [--json]

A full run writes docs/benchmarks/kv_cache.json. `--quick` runs the same code on few steps and claims nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from compressing.post_training_rows import KV_BITS, with_kv_bits
from compressing.trained import FULL, QUICK, Base, Data, Size, loss, micro, prepare_data, train_base

from openafm.compression.keys_values import keep_in

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "kv_cache.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of the same code, under a minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = QUICK if options.quick else FULL

    with tempfile.TemporaryDirectory() as folder:
        report = measure(prepare_data(Path(folder), micro(), size), size)
    if not options.quick:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if not options.json:
        for key, value in report["figures"].items():
            print(f"{key:32} {value}")
    print(json.dumps(report))


def measure(data: Data, size: Size) -> dict[str, Any]:
    """The changes of every base, and their means."""
    bases = [train_base(micro(), data, size, seed) for seed in range(size.seeds)]
    changes = [changes_of(base, data) for base in bases]
    means = {key: round(statistics.mean(change[key] for change in changes), 6) for key in changes[0]}
    return {
        "figures": {
            **means,
            "int8_loss_change_per_seed": [round(change["int8_loss_change"], 6) for change in changes],
            "loss": round(statistics.mean(base.loss for base in bases), 4),
            "bits_per_number": {f"int{bits}": with_kv_bits(bases[0].decoder, bits).bits_per_weight for bits in KV_BITS},
        },
        "peer": "the same models with fp32 keys and values",
        "setting": asdict(size)
        | {
            "model": "on_device.micro",
            "head_dim": 32,
            "held_out_tokens": sum(batch.num_targets for batch in data.held_out),
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }


def changes_of(base: Base, data: Data) -> dict[str, float]:
    """Loss with rounded keys and values, less the loss with exact ones."""
    rounded = copy.deepcopy(base.decoder)
    keep_in(rounded, "bfloat16")
    decoders = {f"int{bits}": with_kv_bits(base.decoder, bits).decoder for bits in KV_BITS} | {"bfloat16": rounded}
    return {f"{name}_loss_change": loss(decoder, data.held_out) - base.loss for name, decoder in decoders.items()}


if __name__ == "__main__":
    main()
