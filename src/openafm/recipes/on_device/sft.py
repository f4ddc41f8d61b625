"""Supervised fine-tuning of the on-device model."""

from __future__ import annotations

from openafm.data.loader import LoaderConfig, SourceConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.mixtures import NANO_COPIES, micro_corpus, nano_corpora, nano_evaluation, one_source
from openafm.recipes.on_device.pretrain import NANO_OPTIMIZER, SMALL_OPTIMIZER
from openafm.training.budgets import TokenBudget
from openafm.training.config import DevicePrecisionConfig, TrainerConfig
from openafm.training.schedules import WarmupStableDecay


@recipe("on_device.sft", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def sft(size: str) -> RunConfig:
    """Fine-tune a pre-trained bundle on the assistant's answers."""
    return {"micro": _micro, "nano": _nano}[size]()


def _micro() -> RunConfig:
    return RunConfig(
        recipe="on_device.sft",
        corpora=(micro_corpus("answers", num_examples=16_000),),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size("on_device.micro"),
            data=one_source("built_in", rows_per_step=2, row_tokens=1024),
            budget=TokenBudget(num_tokens=1_200_000),
            optimizer=SMALL_OPTIMIZER,
            num_threads=1,
            schedule=WarmupStableDecay(decay_fraction=0.3),
        ),
    )


def _nano() -> RunConfig:
    """One row in ten is copies, whose token sequences are more varied than the corpus's names and titles."""
    sources = (
        SourceConfig(name="built_in", path="built_in", weight=0.9),
        SourceConfig(name="copies", path="copies", weight=0.1),
    )
    return RunConfig(
        recipe="on_device.sft",
        corpora=(*nano_corpora(), NANO_COPIES),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size("on_device.nano"),
            data=LoaderConfig(sources=sources, rows_per_step=4, row_tokens=1024),
            budget=TokenBudget(num_tokens=60_000_000),
            optimizer=NANO_OPTIMIZER,
            precision=DevicePrecisionConfig(),
            num_threads=1,
            schedule=WarmupStableDecay(warmup_fraction=0.02, decay_fraction=0.2),
            evaluation=nano_evaluation(),
        ),
    )
