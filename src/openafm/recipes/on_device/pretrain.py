"""Pre-training of the on-device model on sequence copying.

The built-in corpus trains only the tokenizer here. Extraction needs copying from the context, and a CPU can train copying
in minutes.
"""

from __future__ import annotations

from dataclasses import replace

from openafm.models.config import DecoderConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.corpora import CorpusConfig
from openafm.recipes.sources.mixtures import COPIES, micro_corpus, nano_corpora, one_source
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.budgets import StepBudget
from openafm.training.config import InductionStart, TrainerConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig, OptimizerConfig
from openafm.training.schedules import WarmupStableDecay

SMALL_OPTIMIZER = MuonConfig(learning_rate=0.02, weight_decay=0.0, adamw=AdamWConfig(learning_rate=4e-3, weight_decay=0.0))
NANO_OPTIMIZER = replace(SMALL_OPTIMIZER, learning_rate=0.014, adamw=AdamWConfig(learning_rate=2e-3, weight_decay=0.0))


@recipe("on_device.pretrain", sizes=("micro", "nano"))
def pretrain(size: str) -> RunConfig:
    """Train a fresh model to copy from its context."""
    return {"micro": _micro, "nano": _nano}[size]()


def _micro() -> RunConfig:
    """The loss falls abruptly between steps 200 and 300; a budget in seconds could end before that."""
    model = named_size("on_device.micro")
    corpora = (COPIES, micro_corpus("everything", num_examples=6_000))
    return _copying(model, corpora, SMALL_OPTIMIZER, num_steps=350)


def _nano() -> RunConfig:
    """In fp32 at this learning rate the model copies after some 150 steps; in bf16 at micro's rate barely after 400."""
    corpora = (COPIES, *nano_corpora())
    return _copying(named_size("on_device.nano"), corpora, NANO_OPTIMIZER, num_steps=600)


def _copying(
    model: DecoderConfig, corpora: tuple[CorpusConfig, ...], optimizer: OptimizerConfig, num_steps: int
) -> RunConfig:
    """Train on copies from induction-head initialization. All corpora train the tokenizer."""
    return RunConfig(
        recipe="on_device.pretrain",
        corpora=corpora,
        tokenizer=TokenizerConfig(vocab_size=model.vocab_size, spaces="apart"),
        trainer=TrainerConfig(
            model=model,
            data=one_source("copies", rows_per_step=1, row_tokens=1024),
            budget=StepBudget(num_steps=num_steps),
            optimizer=optimizer,
            num_threads=1,
            schedule=WarmupStableDecay(decay_fraction=0.1),
            start=InductionStart(),
        ),
    )
