"""Runs of a model of about ten thousand parameters on a learnable corpus, and child processes to interrupt them in."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # imported before forks: optimizers and collectives need it, which costs two seconds

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.data.shards.writer import write_shards
from openafm.models.config import DecoderConfig
from openafm.models.sizes import shared_kv_decoder
from openafm.training.budgets import StepBudget
from openafm.training.checkpoints.folder import checkpoint_paths
from openafm.training.config import CheckpointConfig, TrainerConfig
from openafm.training.observability.metrics import read_metrics
from openafm.training.observers import StepResult
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.run import train

VOCAB_SIZE = 97

torch.set_num_threads(1)


def tiny_model() -> DecoderConfig:
    """Two layers with their own keys and values, one that shares them."""
    return shared_kv_decoder(
        vocab_size=VOCAB_SIZE,
        dim=32,
        num_own_layers=2,
        num_shared_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        hidden_dim=48,
        context_length=64,
    )


def write_corpus(folder: Path, num_documents: int = 120, seed: int = 0, digest: str = "0" * 64) -> LoaderConfig:
    """Documents that count upwards from anywhere, of 2 to 40 tokens; a third of their tokens carry no loss."""
    generator = np.random.default_rng(seed)
    with write_shards(folder, tokenizer_digest=digest, vocab_size=VOCAB_SIZE, tokens_per_shard=400) as writer:
        for _ in range(num_documents):
            length = int(generator.integers(2, 41))
            tokens = (generator.integers(1, VOCAB_SIZE) + np.arange(length)) % (VOCAB_SIZE - 1) + 1
            writer.add(tokens.tolist(), loss_mask=(generator.random(length) < 0.67).tolist())
    return LoaderConfig(sources=(SourceConfig(name="count", path=str(folder)),), rows_per_step=4, row_tokens=48, seed=seed)


def tiny_run(corpus: LoaderConfig, num_steps: int = 12, **changes: object) -> TrainerConfig:
    config = TrainerConfig(
        model=tiny_model(),
        data=corpus,
        budget=StepBudget(num_steps=num_steps),
        optimizer=AdamWConfig(learning_rate=3e-3),
        checkpoint=CheckpointConfig(every_steps=3, every_seconds=None),
        log_every=1,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def step_result(step: int = 1, **changes: object) -> StepResult:
    """The result of a step on 100 tokens with loss 3."""
    result = StepResult(
        step=step,
        num_steps=100,
        count=100,
        loss=3.0,
        parts={},
        gradient_norm=1.0,
        learning_rate=0.1,
        num_tokens=100,
        total_tokens=100 * step,
        total_seconds=float(step),
        flops=10,
        expert_tokens={},
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def final_bytes(output: Path) -> dict[str, bytes]:
    """The tensor files of the newest checkpoint."""
    newest = checkpoint_paths(output / "checkpoints")[0]
    return {file.name: file.read_bytes() for file in newest.glob("*.safetensors")}


def train_in_child(config: TrainerConfig, output: Path) -> int:
    """Start `train` in a process of its own and return its id; it exits with 0 when `train` returns, else with 1."""
    return in_child(lambda: train(config, output))


def in_child(work: Callable[[], object]) -> int:
    """Start `work` in a forked process and return its id; it exits with 0 when `work` returns, else with 1."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def exit_code(process: int) -> int:
    """Wait for a child; the negated signal number if one killed it, as in `subprocess`."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def wait_for_step(output: Path, step: int, process: int) -> bool:
    """Wait until the run has logged `step`; return False if it ended before."""
    while not any(line["step"] >= step for line in read_metrics(output)):
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    return True
