"""Pre-training of the server model."""

from __future__ import annotations

from openafm.data.loading.loader import LoaderConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.mixtures import COPIES, NANO_TASKS, english, multilingual, sources
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.budgets import StepBudget
from openafm.training.config import InductionStart, TrainerConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay

NUM_TOKENS = 2048  # the built-in corpus supports no larger vocabulary; the model's other rows stay unused
NUM_EXAMPLES = {"micro": 20_000, "nano": 60_000}
MULTILINGUAL_SHARE = 0.25  # of the generated examples; the source weights decide how many of them are read


@recipe("server.pretrain", sizes=("micro", "nano"))
def pretrain(size: str) -> RunConfig:
    """Train fresh parallel tracks with experts on mostly English text and on copies."""
    return RunConfig(
        recipe="server.pretrain",
        corpora=(
            english("english", NANO_TASKS, NUM_EXAMPLES[size]),
            multilingual(round(MULTILINGUAL_SHARE * NUM_EXAMPLES[size])),
            COPIES,
        ),
        tokenizer=TokenizerConfig(vocab_size=NUM_TOKENS, spaces="apart"),
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
