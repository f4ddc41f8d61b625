"""Supervised fine-tuning of the server model."""

from __future__ import annotations

from openafm.data.loading.loader import LoaderConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.server.pretrain import MULTILINGUAL_SHARE
from openafm.recipes.sources.mixtures import (
    COPIES,
    NANO_TASKS,
    english,
    held_out,
    held_out_evaluation,
    mixed_languages,
    multilingual,
    sft_sources,
)
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay

NUM_EXAMPLES = {"micro": 30_000, "nano": 80_000}


@recipe("server.sft", sizes=("micro", "nano"), starts_from="server.pretrain")
def sft(size: str) -> RunConfig:
    """Fine-tune a pre-trained bundle on the assistant's answers, 80 % of them English, and on copies (report 5.1)."""
    return RunConfig(
        recipe="server.sft",
        corpora=(
            english("english", NANO_TASKS, NUM_EXAMPLES[size], learn="answers"),
            multilingual(round(MULTILINGUAL_SHARE * NUM_EXAMPLES[size]), learn="answers"),
            mixed_languages(),
            COPIES,
            held_out(0.2, "answers"),
        ),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size(f"server.{size}"),
            data=LoaderConfig(sources=sft_sources(copies=0.1), rows_per_step=2, row_tokens=1024),
            budget=StepBudget(num_steps={"micro": 900, "nano": 1_000}[size]),
            optimizer=AdamWConfig(learning_rate={"micro": 4e-3, "nano": 2e-3}[size], weight_decay=0.0),
            schedule=WarmupStableDecay(decay_fraction=0.4),
            evaluation=held_out_evaluation(row_tokens=1024),
            num_threads=1,
        ),
    )
