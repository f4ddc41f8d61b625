"""Memory of training steps: the plan of `openafm plan` compared with real steps.

Each case is a process of its own with one thread. It trains the model for a few steps, discards everything and returns free
memory, so that libraries have compiled and cached their kernels, whose memory does not belong to the model (`libraries_mib`,
beyond the imports). Then it builds the same run again and trains the same steps. Measured is the peak resident memory above
that base. Predicted is `Plan.memory.peak`, arithmetic on the config with one number fitted to these cases, their median: the
share of the memory that a step allocates and frees that the system's allocator keeps (`Chip.allocator_share`).

Every case is measured twice. `relative_error` is relative to the unchanged process. `relative_error_held` compares the
arithmetic alone with the same steps under an allocator that returns freed blocks of 1 MiB and more at once
(MALLOC_MMAP_THRESHOLD_), at the price of page faults. `kept` is the share that the allocator kept.

    python benchmarks/memory_plan.py [--quick] [--json]

A full run writes docs/benchmarks/memory_plan.json. `--quick` runs the same code on one small case and claims nothing. Linux
only: the peak resident memory is reset through /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
# As in `openafm train`.
os.environ["LRU_CACHE_CAPACITY"] = os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "64"

import numpy as np
from shared.reporting import benchmark_parser, hand_in

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.sizes import named_size
from openafm.training.budgets import StepBudget
from openafm.training.config import ActivationCheckpointingConfig, BFloat16Config, EMAConfig, Float32Config, TrainerConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig, OptimizerConfig
from openafm.training.planning.chips import CHIPS, Precision
from openafm.training.planning.device_memory import Memory
from openafm.training.planning.plan import Workload
from openafm.training.planning.search import Axes, make_plan

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "memory_plan.json"
STEPS, SEED, MIB = 3, 0, 1 << 20


@dataclass(frozen=True)
class Case:
    """A run: rows of a step, full of documents; `average` keeps a moving average of the weights.

    `recomputed` is a key of `RECOMPUTED`: the activations that the backward pass computes again.
    """

    size: str
    rows: int
    row_tokens: int
    document_tokens: int
    microbatch_rows: int
    precision: Precision = "float32"
    optimizer: str = "adamw"
    average: bool = False
    recomputed: str = "nothing"


CASES = (
    Case("on_device.nano", 4, 512, 256, 4),
    Case("on_device.nano", 8, 512, 128, 2, optimizer="muon", average=True),
    Case("on_device.nano", 4, 512, 512, 4, precision="bfloat16"),
    Case("on_device.nano", 2, 2048, 1024, 2, precision="bfloat16", optimizer="muon"),
    Case("on_device.nano", 1, 64, 32, 1),
    Case("server.nano", 4, 512, 256, 4),
    Case("server.nano", 8, 512, 512, 2, average=True),
    Case("server.nano", 4, 512, 256, 4, precision="bfloat16"),
    Case("server.nano", 1, 2048, 2048, 1, precision="bfloat16"),
    Case("server.nano", 1, 64, 32, 1),
    Case("on_device.nano", 4, 1024, 1024, 4, precision="bfloat16", recomputed="all"),
    Case("on_device.nano", 4, 1024, 1024, 4, precision="bfloat16", recomputed="all but attention"),
    Case("server.nano", 4, 512, 256, 4, recomputed="all"),
)
RECOMPUTED = {
    "nothing": None,
    "all": ActivationCheckpointingConfig(),
    "all but attention": ActivationCheckpointingConfig(keep_attention=True),
}
QUICK = (Case("on_device.nano", 1, 512, 256, 1),)
OPTIMIZERS: dict[str, OptimizerConfig] = {"adamw": AdamWConfig(), "muon": MuonConfig()}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--child", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(Case(**json.loads(options.child)))))
        return
    rows = [compare(case) for case in (QUICK if options.quick else CASES)]
    import torch

    report = {
        "figures": {
            "relative_error": max(row["relative_error"] for row in rows),
            "relative_error_held": max(row["relative_error_held"] for row in rows),
            "mean_relative_error": round(sum(row["relative_error"] for row in rows) / len(rows), 4),
            "cases": rows,
        },
        "peer": "the highest resident memory of the same steps in a process of their own",
        "setting": {
            "steps": STEPS,
            "seed": SEED,
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
    }
    hand_in(report, REPORT, options)


def compare(case: Case) -> dict[str, object]:
    """Return the predicted and measured memory of a case, in MiB."""
    measured, held = in_child(case, {}), in_child(case, {"MALLOC_MMAP_THRESHOLD_": str(MIB)})
    memory = predict(case)
    without_allocator = memory.peak - memory.allocator
    comes_and_goes = without_allocator - memory.parameters - memory.optimizer - memory.average
    return {
        **asdict(case),
        "predicted_mib": round(memory.peak / MIB, 1),
        "measured_mib": round(measured["peak"] / MIB, 1),
        "relative_error": relative_error(memory.peak, measured["peak"]),
        "predicted_held_mib": round(without_allocator / MIB, 1),
        "held_mib": round(held["peak"] / MIB, 1),
        "relative_error_held": relative_error(without_allocator, held["peak"]),
        "kept": round((measured["peak"] - without_allocator) / comes_and_goes, 3),
        "libraries_mib": round(measured["libraries"] / MIB, 1),
    }


def relative_error(predicted: int, measured: int) -> float:
    return round(abs(predicted - measured) / measured, 4)


def in_child(case: Case, environment: dict[str, str]) -> dict[str, int]:
    """Run `measure` in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(asdict(case))],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr}")
    measured: dict[str, int] = json.loads(done.stdout)
    return measured


def predict(case: Case) -> Memory:
    workload = Workload(
        rows_per_step=case.rows,
        row_tokens=case.row_tokens,
        document_tokens=case.document_tokens,
        microbatch_rows=case.microbatch_rows,
        precision=case.precision,
        optimizer=OPTIMIZERS[case.optimizer],
        ema=EMAConfig() if case.average else None,
        activation_checkpointing=RECOMPUTED[case.recomputed],
    )
    axes = Axes(shard=1, expert=1, track=1)
    return make_plan(named_size(case.size), num_devices=1, chip=CHIPS["cpu-core"], workload=workload, axes=axes).memory


def measure(case: Case) -> dict[str, int]:
    """Return the peak bytes above the base in this process, and those that libraries keep beyond the imports."""
    import torch

    import openafm.training.run  # noqa: F401 (the imports of a run are part of the base)

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = run_config(case, Path(folder) / "shards")
        imports = resident("VmRSS")
        train(config)
        give_back()
        base = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        train(config)
        return {"peak": resident("VmHWM") - base, "libraries": base - imports}


def run_config(case: Case, shards: Path) -> TrainerConfig:
    model, generator = named_size(case.size), np.random.default_rng(SEED)
    with write_shards(shards, tokenizer_digest="0" * 64, vocab_size=model.vocab_size, tokens_per_shard=1 << 20) as writer:
        for _ in range((STEPS + 1) * case.rows * case.row_tokens // case.document_tokens):
            writer.add(generator.integers(1, model.vocab_size, case.document_tokens).tolist())
    source = SourceConfig(name="random", path=str(shards))
    return TrainerConfig(
        model=model,
        data=LoaderConfig(sources=(source,), rows_per_step=case.rows, row_tokens=case.row_tokens),
        budget=StepBudget(num_steps=STEPS),
        optimizer=OPTIMIZERS[case.optimizer],
        ema=EMAConfig() if case.average else None,
        precision=Float32Config() if case.precision == "float32" else BFloat16Config(),
        microbatch_rows=case.microbatch_rows,
        activation_checkpointing=RECOMPUTED[case.recomputed],
        seed=SEED,
    )


def train(config: TrainerConfig) -> None:
    from openafm.training.initialization import fresh_state
    from openafm.training.trainer import Trainer

    loader = config.data.build()
    trainer = Trainer(config, fresh_state(config, "cpu"), loader)
    for step in range(STEPS):
        trainer.update(loader.batch(step))


def give_back() -> None:
    """Make the allocator return free memory."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident(key: str) -> int:
    """Return bytes of this process: VmRSS is current, VmHWM the peak."""
    lines: Sequence[str] = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith(key + ":")]
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
