"""Supervised fine-tuning of the on-device model."""

from __future__ import annotations

from dataclasses import replace

from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.on_device.pretrain import NANO_OPTIMIZER, SMALL_OPTIMIZER
from openafm.recipes.sources.mixtures import (
    COPIES,
    NANO_TASKS,
    SFT_MULTILINGUAL_SHARE,
    english,
    held_out,
    held_out_evaluation,
    micro_corpus,
    mixed_languages,
    multilingual,
    nano_corpora,
    nano_evaluation,
    sft_sources,
)
from openafm.training.budgets import TokenBudget
from openafm.training.config import DevicePrecisionConfig, TrainerConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay

NUM_EXAMPLES = {"micro": 16_000, "nano": 320_000}
"""English examples of `on_device.sft_multilingual`."""

MICRO_OPTIMIZER = replace(SMALL_OPTIMIZER, learning_rate=0.01, adamw=AdamWConfig(learning_rate=2e-3, weight_decay=0.0))
_WITH_COPIES = (
    SourceConfig(name="built_in", path="built_in", weight=0.9),
    SourceConfig(name="copies", path="copies", weight=0.1),
)


@recipe("on_device.sft", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def sft(size: str) -> RunConfig:
    """Fine-tune a pre-trained bundle on the assistant's answers."""
    return {"micro": _micro, "nano": _nano}[size]()


@recipe("on_device.sft_multilingual", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def sft_multilingual(size: str) -> RunConfig:
    """Fine-tune on the report's mixture of languages: English to others 80:20, 0.4 % of these in mixed languages."""
    run = sft(size)
    corpora = (
        english("english", NANO_TASKS, NUM_EXAMPLES[size], learn="answers"),
        multilingual(round(SFT_MULTILINGUAL_SHARE * NUM_EXAMPLES[size]), learn="answers"),
        mixed_languages(),
        COPIES,
        held_out(SFT_MULTILINGUAL_SHARE, "answers"),
    )
    trainer = replace(
        run.trainer,
        data=replace(run.trainer.data, sources=sft_sources(copies=0.1)),
        evaluation=held_out_evaluation(row_tokens=run.trainer.data.row_tokens),
    )
    return replace(run, recipe="on_device.sft_multilingual", corpora=corpora, trainer=trainer)


def _micro() -> RunConfig:
    """Small steps at a low learning rate: at 0.02, as in pre-training, the loss after 300,000 tokens is 0.05 higher."""
    return RunConfig(
        recipe="on_device.sft",
        corpora=(micro_corpus("answers", num_examples=6_000), COPIES),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size("on_device.micro"),
            data=LoaderConfig(sources=_WITH_COPIES, rows_per_step=1, row_tokens=1024),
            budget=TokenBudget(num_tokens=1_000_000),
            optimizer=MICRO_OPTIMIZER,
            num_threads=1,
            schedule=WarmupStableDecay(decay_fraction=0.4),
        ),
    )


def _nano() -> RunConfig:
    """One row in ten is copies, whose token sequences are more varied than the corpus's names and titles.

    All tokens of conversations carry loss: after 2.5 M tokens the held-out loss of answers is 0.813, and 0.887 where only
    answers carry loss.
    """
    return RunConfig(
        recipe="on_device.sft",
        corpora=(*nano_corpora("everything"), COPIES),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size("on_device.nano"),
            data=LoaderConfig(sources=_WITH_COPIES, rows_per_step=4, row_tokens=1024),
            budget=TokenBudget(num_tokens=60_000_000),
            optimizer=NANO_OPTIMIZER,
            precision=DevicePrecisionConfig(),
            num_threads=1,
            schedule=WarmupStableDecay(warmup_fraction=0.02, decay_fraction=0.2),
            evaluation=nano_evaluation(),
        ),
    )
