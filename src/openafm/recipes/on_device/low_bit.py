"""Quantization-aware training and the recovery adapter (report 6), on the data of fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from openafm.adapters.config import LoRAConfig
from openafm.compression.config import QATConfig
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.on_device.sft import sft
from openafm.training.budgets import TokenBudget
from openafm.training.config import EMAConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay

QAT_BUDGETS = {"micro": TokenBudget(num_tokens=400_000), "nano": TokenBudget(num_tokens=6_000_000)}
RECOVERY_BUDGETS = {"micro": TokenBudget(num_tokens=120_000), "nano": TokenBudget(num_tokens=1_200_000)}
RECOVERY_RANKS = {"micro": 8, "nano": 2}


@recipe("on_device.qat", sizes=("micro", "nano"), starts_from="on_device.sft")
def qat(size: str) -> RunConfig:
    """Train with simulated 2-bit weights and write a compressed bundle.

    As in the report: AdamW without weight decay, a lower learning rate, and the moving average of the weights.
    """
    run = _answers_of_sft(size)
    trainer = replace(
        run.trainer,
        budget=QAT_BUDGETS[size],
        qat=QATConfig(),
        optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0),
        schedule=WarmupStableDecay(decay_fraction=0.5),
        ema=EMAConfig(decay=0.98),
    )
    return replace(run, recipe="on_device.qat", trainer=trainer)


@recipe("on_device.recovery_adapter", sizes=("micro", "nano"), starts_from="on_device.qat")
def recovery_adapter(size: str) -> RunConfig:
    """Train a low-rank adapter on a compressed bundle to recover the quality that compression lost."""
    run = _answers_of_sft(size)
    trainer = replace(
        run.trainer,
        budget=RECOVERY_BUDGETS[size],
        adapter=LoRAConfig(rank=RECOVERY_RANKS[size]),
        optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.0),
        schedule=WarmupStableDecay(decay_fraction=0.5),
    )
    return replace(run, recipe="on_device.recovery_adapter", trainer=trainer)


def _answers_of_sft(size: str) -> RunConfig:
    """Return fine-tuning where only the assistant's answers carry loss: few bits and small adapters are spent on them."""
    run = sft(size)
    return replace(run, corpora=tuple(replace(corpus, learn="answers") for corpus in run.corpora))
