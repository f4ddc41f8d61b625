"""The server model's runs (report 2.2, 4.3), at the sizes that the built-in corpus can feed."""

from __future__ import annotations

from openafm.data.loader import LoaderConfig, SourceConfig
from openafm.data.synthetic import SyntheticConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, SyntheticCorpusConfig, recipe
from openafm.recipes.on_device import NANO_LANGUAGES, NANO_TASKS
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.config import AdamWConfig, StepBudget, TrainerConfig
from openafm.training.schedules import WarmupStableDecay

TOKENS = 2048  # of the tokenizer: what the built-in corpus teaches; the model's rows beyond are to spare


@recipe("server.pretrain", sizes=("micro", "nano"))
def pretrain(size: str) -> RunConfig:
    """Parallel tracks with experts, from nothing, on the built-in corpus."""
    synthetic = SyntheticConfig(tasks=NANO_TASKS, languages=NANO_LANGUAGES)
    corpus = SyntheticCorpusConfig(name="built_in", learn="everything", synthetic=synthetic, num_examples=40_000)
    return RunConfig(
        recipe="server.pretrain",
        corpora=(corpus,),
        tokenizer=TokenizerConfig(vocab_size=TOKENS, spaces="apart"),
        trainer=TrainerConfig(
            model=named_size(f"server.{size}"),
            data=LoaderConfig(sources=(SourceConfig(name="built_in", path="built_in"),), rows_per_step=4, row_tokens=512),
            budget=StepBudget(num_steps={"micro": 400, "nano": 1_000}[size]),
            optimizer=AdamWConfig(learning_rate=2e-3, weight_decay=0.0),
            schedule=WarmupStableDecay(decay_fraction=0.3),
            num_threads=1,
        ),
    )
