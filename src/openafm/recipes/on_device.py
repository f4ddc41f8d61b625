"""The on-device model's runs (report 4.3, 5.1), at the sizes that the built-in corpus can feed."""

from __future__ import annotations

from typing import Literal

from openafm.data.loader import LoaderConfig, SourceConfig
from openafm.data.synthetic import SyntheticConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, SyntheticCorpusConfig, recipe
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.config import AdamWConfig, EvaluationConfig, StepBudget, TimeBudget, TrainerConfig
from openafm.training.schedules import WarmupStableDecay

# What the micro model is for is events; a little of every other task lets `respond` and `chat` say something at all.
MICRO_TASKS = {"event": 0.9, "tagging": 0.02, "summary": 0.02, "rewrite": 0.02, "arithmetic": 0.02, "story": 0.02}
NANO_TASKS = {"event": 0.3, "tagging": 0.14, "summary": 0.14, "rewrite": 0.14, "arithmetic": 0.14, "story": 0.14}


@recipe("on_device.pretrain", sizes=("micro", "nano"))
def pretrain(size: str) -> RunConfig:
    """Next-token training on whole conversations of the built-in corpus, from nothing."""
    trainer = {
        "micro": TrainerConfig(
            model=named_size("on_device.micro"),
            data=_built_in(rows_per_step=4, row_tokens=1024),
            budget=TimeBudget(seconds=60),
            optimizer=AdamWConfig(learning_rate=4e-3),
            schedule=WarmupStableDecay(),
        ),
        "nano": TrainerConfig(
            model=named_size("on_device.nano"),
            data=_built_in(rows_per_step=8, row_tokens=2048),
            budget=StepBudget(num_steps=12_000),
            optimizer=AdamWConfig(learning_rate=2e-3),
            schedule=WarmupStableDecay(),
            evaluation=EvaluationConfig(data=_built_in(rows_per_step=2, row_tokens=2048, held_out=True)),
        ),
    }[size]
    return RunConfig(
        recipe="on_device.pretrain",
        corpora=_corpora(size, learn="everything"),
        tokenizer=TokenizerConfig(vocab_size=trainer.model.vocab_size),
        trainer=trainer,
    )


@recipe("on_device.sft", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def sft(size: str) -> RunConfig:
    """Fine-tuning on the assistant's answers only, from a pre-trained bundle and with its tokenizer."""
    trainer = {
        "micro": TrainerConfig(
            model=named_size("on_device.micro"),
            data=_built_in(rows_per_step=4, row_tokens=1024),
            budget=TimeBudget(seconds=160),
            optimizer=AdamWConfig(learning_rate=3e-3),
            schedule=WarmupStableDecay(decay_fraction=0.4),
        ),
        "nano": TrainerConfig(
            model=named_size("on_device.nano"),
            data=_built_in(rows_per_step=8, row_tokens=2048),
            budget=StepBudget(num_steps=6_000),
            optimizer=AdamWConfig(learning_rate=1e-3),
            schedule=WarmupStableDecay(decay_fraction=0.4),
            evaluation=EvaluationConfig(data=_built_in(rows_per_step=2, row_tokens=2048, held_out=True)),
        ),
    }[size]
    return RunConfig(recipe="on_device.sft", corpora=_corpora(size, learn="answers"), tokenizer=None, trainer=trainer)


def _built_in(*, rows_per_step: int, row_tokens: int, held_out: bool = False) -> LoaderConfig:
    name = "held_out" if held_out else "built_in"
    source = SourceConfig(name=name, path=name)
    return LoaderConfig(sources=(source,), rows_per_step=rows_per_step, row_tokens=row_tokens)


def _corpora(size: str, learn: Literal["everything", "answers"]) -> tuple[SyntheticCorpusConfig, ...]:
    tasks = {"micro": MICRO_TASKS, "nano": NANO_TASKS}[size]
    num_examples = {"micro": 40_000, "nano": 400_000}[size]
    built_in = SyntheticCorpusConfig(
        name="built_in", learn=learn, synthetic=SyntheticConfig(tasks=tasks), num_examples=num_examples
    )
    if size == "micro":
        return (built_in,)
    held_out = SyntheticCorpusConfig(
        name="held_out", learn=learn, synthetic=SyntheticConfig(tasks=tasks, split="held_out"), num_examples=2_000
    )
    return (built_in, held_out)
