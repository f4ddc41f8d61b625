"""The server model's runs (report 2.2, 4.3, 5.1), at the sizes that the built-in corpus can feed."""

from __future__ import annotations

from openafm.data.loader import LoaderConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.mixtures import english, held_out, held_out_evaluation, multilingual, sources
from openafm.recipes.on_device import NANO_COPIES, NANO_TASKS
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.config import AdamWConfig, InductionStart, StepBudget, TrainerConfig
from openafm.training.schedules import WarmupStableDecay

TOKENS = 2048  # of the tokenizer: what the built-in corpus teaches; the model's rows beyond are to spare
PRETRAINING_EXAMPLES = {"micro": 20_000, "nano": 60_000}
TUNING_EXAMPLES = {"micro": 30_000, "nano": 80_000}
MULTILINGUAL_SHARE = 0.25  # of the examples made; how much of them is read, the weights say


@recipe("server.pretrain", sizes=("micro", "nano"))
def pretrain(size: str) -> RunConfig:
    """Parallel tracks with experts, from nothing: text, a little of it not English, and copies, to learn to look back."""
    num_examples = PRETRAINING_EXAMPLES[size]
    return RunConfig(
        recipe="server.pretrain",
        corpora=(
            english("english", NANO_TASKS, num_examples),
            multilingual(round(MULTILINGUAL_SHARE * num_examples)),
            NANO_COPIES,
        ),
        tokenizer=TokenizerConfig(vocab_size=TOKENS, spaces="apart"),
        trainer=TrainerConfig(
            model=named_size(f"server.{size}"),
            data=LoaderConfig(sources=sources(english=0.62, multilingual=0.08, copies=0.3), rows_per_step=4, row_tokens=512),
            budget=StepBudget(num_steps={"micro": 700, "nano": 1_000}[size]),
            optimizer=AdamWConfig(learning_rate={"micro": 4e-3, "nano": 2e-3}[size], weight_decay=0.0),
            schedule=WarmupStableDecay(decay_fraction=0.3),
            start=InductionStart(),
            num_threads=1,
        ),
    )


@recipe("server.sft", sizes=("micro", "nano"), starts_from="server.pretrain")
def sft(size: str) -> RunConfig:
    """Fine-tuning on the assistant's answers only, 80 % of them English, and some copies still (report 5.1)."""
    num_examples = TUNING_EXAMPLES[size]
    tuning = (
        english("english", NANO_TASKS, num_examples, learn="answers"),
        multilingual(round(MULTILINGUAL_SHARE * num_examples), learn="answers"),
        NANO_COPIES,
    )
    return RunConfig(
        recipe="server.sft",
        corpora=(*tuning, held_out(0.2, "answers")),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size(f"server.{size}"),
            data=LoaderConfig(
                sources=sources(english=0.72, multilingual=0.18, copies=0.1), rows_per_step=2, row_tokens=1024
            ),
            budget=StepBudget(num_steps={"micro": 900, "nano": 1_000}[size]),
            optimizer=AdamWConfig(learning_rate={"micro": 4e-3, "nano": 2e-3}[size], weight_decay=0.0),
            schedule=WarmupStableDecay(decay_fraction=0.4),
            evaluation=held_out_evaluation(row_tokens=1024),
            num_threads=1,
        ),
    )
