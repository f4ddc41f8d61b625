"""Speed of training the shipped model on this processor: tokens per CPU second by precision, rows and learned tokens.

One thread, updates of random documents of 150 to 500 tokens; the settings alternate, and medians count. "answers" has loss
on 15 % of the tokens, "everything" on all.

    python benchmarks/shipped_training_speed.py [--quick] [--json]
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from shared.reporting import benchmark_parser, hand_in

from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import Span
from openafm.recipes.catalog import build_run
from openafm.training.config import BFloat16Config, Float32Config, PrecisionConfig
from openafm.training.initialization import fresh_state
from openafm.training.trainer import Trainer

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "shipped_training_speed.json"
ROW_TOKENS = 1024
PRECISIONS: dict[str, PrecisionConfig] = {"fp32": Float32Config(), "bf16": BFloat16Config()}
LEARNED = {"answers": 0.15, "everything": 1.0}
SETTINGS = [("fp32", 4, "answers"), ("bf16", 4, "answers"), ("bf16", 8, "answers"), ("bf16", 16, "answers")]
SETTINGS += [("fp32", 4, "everything"), ("bf16", 4, "everything")]


class RandomDocuments:
    """The same batch of random tokens at each step."""

    digest, fails_together = "random documents", False

    def __init__(self, rows: int, learned: float) -> None:
        random = np.random.default_rng(0)
        self.max_rows = rows
        tokens_BS = random.integers(0, 4096, (rows, ROW_TOKENS))
        self.batch = Batch(
            tokens_BS=tokens_BS,
            targets_BS=np.roll(tokens_BS, -1, axis=1),
            loss_mask_BS=random.random((rows, ROW_TOKENS)) < learned,
            documents=tuple(_documents(random, rows)),
        )

    def batches(self, start_step: int) -> Generator[Batch]:
        while True:
            yield self.batch


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    settings = SETTINGS[:2] if options.quick else SETTINGS
    rounds = 1 if options.quick else 5
    trainers = {setting: _trainer(*setting) for setting in settings}
    rates: dict[tuple[str, int, str], list[float]] = {setting: [] for setting in settings}
    for round_index in range(rounds + 1):
        for setting, (trainer, batch) in trainers.items():
            started = process_time()
            trainer.update(batch)
            if round_index > 0:  # the first update allocates
                rates[setting].append(setting[1] * ROW_TOKENS / (process_time() - started))
    figures = {
        f"{p}_{rows}_rows_{learned}": round(statistics.median(rates[p, rows, learned])) for p, rows, learned in settings
    }
    hand_in({"figures": figures, "unit": "tokens per CPU second", "processor": _processor()}, REPORT, options)


def _trainer(precision: str, rows: int, learned: str) -> tuple[Trainer, Batch]:
    config = build_run("on_device.sft", "nano").trainer
    config = replace(config, precision=PRECISIONS[precision], data=replace(config.data, rows_per_step=rows))
    source = RandomDocuments(rows, LEARNED[learned])
    return Trainer(config, fresh_state(config, "cpu"), source), source.batch


def _documents(random: np.random.Generator, rows: int) -> list[Span]:
    spans = []
    for row in range(rows):
        start = 0
        while start < ROW_TOKENS:
            stop = min(ROW_TOKENS, start + int(random.integers(150, 500)))
            spans.append(Span(row=row, start=start, stop=stop))
            start = stop
    return spans


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    features = [name for name in ("avx512f", "avx512_bf16", "amx_bf16") if any(name in line for line in lines)]
    return f"{names[0] if names else 'unknown'}, {' '.join(features) or 'no AVX-512'}"


if __name__ == "__main__":
    main()
