"""Context parallelism: two processes that divide the positions of one row, against one process with the whole row.

Each case trains the model for a few steps on rows of a long document and two short ones, or of one document, in fp32 with
one thread per process, and with every layout of the positions. `loss_difference` is the largest difference of the loss of a
step. `peak_ratio` is the peak memory of a step in the rank with the most, relative to one process: resident memory above
that after the imports and a warm-up, under an allocator that returns freed blocks of 1 MiB and more at once. `exchanged_mb`
is what a rank sends along the axis in a step, as planned. `slowest_rank` is the CPU time of a step in the rank with the
most, relative to the mean of the ranks: what the others wait for.

    python benchmarks/context_parallel.py [--quick] [--json]

A full run writes docs/benchmarks/context_parallel.json. `--quick` takes shorter rows. Linux only: the peak resident memory
is reset through /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from shared.reporting import benchmark_parser, hand_in

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.config import DecoderConfig
from openafm.models.parallel.row_layout import BalancedLayout, ConsecutiveLayout, RowLayoutConfig
from openafm.models.sizes import named_size
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.optimizer_config import AdamWConfig

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "context_parallel.json"
RANKS, STEPS, SEED, MIB = 2, 3, 0, 1 << 20
LAYOUTS: dict[str, RowLayoutConfig] = {"consecutive": ConsecutiveLayout(), "balanced": BalancedLayout()}


@dataclass(frozen=True)
class Case:
    """A model, the length of its rows, and the shares of a row that its documents take."""

    size: str
    row_tokens: int
    documents: tuple[float, ...] = (0.75, 0.125, 0.125)

    @property
    def model(self) -> DecoderConfig:
        model = named_size(self.size)
        return replace(model, context_length=max(model.context_length, self.row_tokens))


CASES = (Case("on_device.nano", 16384), Case("on_device.nano", 16384, (1.0,)), Case("server.nano", 8192))
QUICK = (Case("on_device.micro", 2048), Case("on_device.micro", 4096, (1.0,)), Case("server.micro", 2048))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--rank", nargs=3, metavar=("CASE", "LAYOUT", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        case, layout, folder = options.rank
        print(json.dumps(measure(Case(**json.loads(case)), layout, Path(folder))))
        return
    rows = [row for case in (QUICK if options.quick else CASES) for row in compare(case)]
    figures = {
        "loss_difference": max(row["loss_difference"] for row in rows),
        "peak_ratio": max(row["peak_ratio"] for row in rows),
        "slowest_rank": {layout: max(row["slowest_rank"] for row in rows if row["layout"] == layout) for layout in LAYOUTS},
        "ranks": RANKS,
        "rows": rows,
    }
    hand_in({"figures": figures, "setting": {"steps": STEPS, "threads_of_a_rank": 1}}, REPORT, options)


def compare(case: Case) -> list[dict[str, Any]]:
    """Train a case in one process, and in several with each layout."""
    with tempfile.TemporaryDirectory() as folder:
        write_rows(case, Path(folder) / "shards")
        print(f"{case.size}, rows of {case.row_tokens:,} tokens", file=sys.stderr)
        (alone,) = in_processes(case, "consecutive", folder, 1)
        of_layouts = {layout: in_processes(case, layout, folder, RANKS) for layout in LAYOUTS}
    return [row_of(case, layout, alone, ranks) for layout, ranks in of_layouts.items()]


def row_of(case: Case, layout: str, alone: dict[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the ranks with one process."""
    peak, cpu = max(rank["peak"] for rank in ranks), [rank["cpu_seconds"] for rank in ranks]
    differences = [abs(one - other) for one, other in zip(alone["losses"], ranks[0]["losses"], strict=True)]
    return {
        **asdict(case),
        "layout": layout,
        "loss_difference": max(differences),
        "peak_mib": round(peak / MIB, 1),
        "peak_mib_alone": round(alone["peak"] / MIB, 1),
        "peak_ratio": round(peak / alone["peak"], 3),
        "slowest_rank": round(max(cpu) / statistics.fmean(cpu), 3),
        "cpu_seconds": [round(seconds, 3) for seconds in cpu],
        "tokens_per_second": round(case.row_tokens / max(rank["seconds"] for rank in ranks), 1),
        "tokens_per_second_alone": round(case.row_tokens / alone["seconds"], 1),
        "exchanged_mb": round(exchanged_bytes(case, layout) / 1e6, 2),
    }


def write_rows(case: Case, shards: Path) -> None:
    """Write the documents of each row; the borders of several are not those of the ranks."""
    generator, vocab_size = np.random.default_rng(SEED), case.model.vocab_size
    lengths = [round(case.row_tokens * share) for share in case.documents]
    with write_shards(shards, tokenizer_digest="0" * 64, vocab_size=vocab_size, tokens_per_shard=1 << 20) as writer:
        for _ in range(STEPS + 1):
            for length in lengths:
                writer.add(generator.integers(1, vocab_size, length).tolist())


def run_config(case: Case, layout: str, shards: Path, ranks: int) -> TrainerConfig:
    source = SourceConfig(name="random", path=str(shards))
    return TrainerConfig(
        model=case.model,
        data=LoaderConfig(sources=(source,), rows_per_step=1, row_tokens=case.row_tokens),
        budget=StepBudget(num_steps=STEPS),
        optimizer=AdamWConfig(eps=1e-4),  # a small epsilon amplifies rounding in gradients near 0
        parallel=ParallelConfig(context=ranks, context_layout=LAYOUTS[layout]),
        seed=SEED,
    )


def in_processes(case: Case, layout: str, folder: str, ranks: int) -> list[dict[str, Any]]:
    """Run `measure` in processes that communicate as under torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(MIB)}
    command = [sys.executable, __file__, "--rank", json.dumps(asdict(case)), layout, folder]
    environments = [os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=each) for each in environments]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{case} failed in {ranks} processes")
    return [json.loads(output) for output in outputs]


def measure(case: Case, layout: str, folder: Path) -> dict[str, Any]:
    """Return the losses, the wall and CPU seconds of the fastest step, and the peak bytes of a step in this process."""
    import torch

    from openafm.training.distributed.parallel import Parallelism
    from openafm.training.distributed.processes import open_processes
    from openafm.training.initialization import fresh_state
    from openafm.training.trainer import Trainer

    torch.set_num_threads(1)
    with open_processes() as processes:
        config = run_config(case, layout, folder / "shards", processes.world)

        def trainer_of(row_tokens: int) -> Trainer:
            changed = replace(config, data=replace(config.data, row_tokens=row_tokens))
            parallelism = Parallelism(config.parallel, config.model, processes)
            loader = changed.data.build(parallelism.data_rank, parallelism.data_world)
            return Trainer(changed, fresh_state(changed, "cpu", parallelism), loader)

        warm_up = trainer_of(256)
        warm_up.update(warm_up.source.batch(0))
        del warm_up
        give_back()
        base = resident("VmRSS")
        trainer = trainer_of(case.row_tokens)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        losses, seconds, cpu_seconds = [], [], []
        for step in range(STEPS):
            start_s, cpu_start_s = time.perf_counter(), time.process_time()
            losses.append(trainer.update(trainer.source.batch(step)).loss)
            seconds.append(time.perf_counter() - start_s)
            cpu_seconds.append(time.process_time() - cpu_start_s)
        return {
            "losses": losses,
            "seconds": min(seconds),
            "cpu_seconds": min(cpu_seconds),
            "peak": resident("VmHWM") - base,
        }


def exchanged_bytes(case: Case, layout: str) -> int:
    """Return the bytes that a rank sends along the axis in a step, as planned."""
    from openafm.training.planning.chips import CHIPS
    from openafm.training.planning.plan import Workload
    from openafm.training.planning.search import Axes, make_plan

    axes = Axes(context=RANKS, shard=1, expert=1, track=1, context_layout=LAYOUTS[layout])
    workload = Workload(rows_per_step=1, row_tokens=case.row_tokens, precision="float32")
    chip = replace(CHIPS["cpu-core"], memory=1 << 50)
    plan = make_plan(case.model, num_devices=RANKS, chip=chip, workload=workload, axes=axes)
    return sum(found.inside for found in plan.collectives if found.axis == "context")


def give_back() -> None:
    """Make the allocator return free memory."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident(key: str) -> int:
    """Return bytes of this process: VmRSS is current, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith(key + ":")]
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
