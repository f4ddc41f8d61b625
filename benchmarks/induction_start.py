"""The benefit of the induction start: the loss on repeated random tokens with and without it, all else equal.

    python benchmarks/induction_start.py [--quick] [--json]

A full run (about 4 minutes of CPU time) writes docs/benchmarks/induction_start.json. `--quick` runs a tenth of it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from openafm.data.copies import pack_copies
from openafm.data.loading.loader import SourceConfig
from openafm.recipes.catalog import build_run
from openafm.recipes.sources.corpora import CopiesCorpusConfig
from openafm.tokenizer.bpe import Tokenizer
from openafm.training.budgets import StepBudget
from openafm.training.config import PlainStart, StartConfig, TrainerConfig
from openafm.training.observability.metrics import read_metrics
from openafm.training.run import train

NUM_STEPS = 400
REPORT = Path(__file__).parent.parent / "docs" / "benchmarks" / "induction_start.json"


def losses(start: StartConfig, num_steps: int, seed: int) -> dict[str, float]:
    """Return the loss at every tenth of a run of the micro model on copies only."""
    run = build_run("on_device.pretrain", "micro")
    corpus = next(corpus for corpus in run.corpora if isinstance(corpus, CopiesCorpusConfig))
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _tokenizer_of(run.trainer.model.vocab_size)
        pack_copies(corpus.copies, corpus.num_examples, Path(folder) / "copies", tokenizer)
        sources = (SourceConfig(name="copies", path=str(Path(folder) / "copies")),)
        config: TrainerConfig = replace(
            run.trainer,
            data=replace(run.trainer.data, sources=sources),
            budget=StepBudget(num_steps=num_steps),
            start=start,
            seed=seed,
            log_every=max(1, num_steps // 10),
        )
        train(config, Path(folder) / "run")
        return {str(line["step"]): line["loss"] for line in read_metrics(Path(folder) / "run") if "loss" in line}


def _tokenizer_of(vocab_size: int) -> Tokenizer:
    """Return a tokenizer of the given size; copies are of random tokens, so its texts do not matter."""
    characters = [chr(code) for code in range(0x21, 0x7F)]
    pairs = [(a, b) for a in characters for b in characters]
    return Tokenizer(pairs[: vocab_size - 320])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    num_steps = NUM_STEPS // 10 if quick else NUM_STEPS
    run = build_run("on_device.pretrain", "micro")
    with_start = losses(run.trainer.start, num_steps, seed=0)
    plain = losses(PlainStart(), num_steps, seed=0)
    for step, loss in with_start.items():
        print(f"step {step:>4}  with the head start {loss:6.3f}  plain {plain[step]:6.3f}")
    report = {
        "figures": {
            "loss_with_start": list(with_start.values())[-1],
            "loss_plain": list(plain.values())[-1],
            "curve_with_start": with_start,
            "curve_plain": plain,
        },
        "peer": "the same model, data and steps from plain weights",
        "setting": {"quick": quick, "steps": num_steps, "tokens_per_step": 1024, "threads": 1, "seed": 0},
    }
    if not quick:
        REPORT.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
