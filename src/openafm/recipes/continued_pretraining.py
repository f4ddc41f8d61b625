"""Continued pre-training of both models (report 4.3): a new text mixture, then a longer context."""

from __future__ import annotations

from dataclasses import replace

from openafm.data.loading.loader import LoaderConfig
from openafm.data.needles import NeedlesConfig
from openafm.data.synthetic import SyntheticConfig
from openafm.models.sizes import named_size
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.corpora import NeedlesCorpusConfig, SyntheticCorpusConfig
from openafm.recipes.sources.mixtures import (
    CODE_TASKS,
    COPIES,
    ENGLISH,
    KNOWLEDGE_TASKS,
    MATH_TASKS,
    NANO_TASKS,
    english,
    held_out,
    held_out_evaluation,
    multilingual,
    sources,
)
from openafm.training.budgets import StepBudget
from openafm.training.config import TrainerConfig
from openafm.training.optimizer_config import AdamWConfig, MuonConfig, OptimizerConfig
from openafm.training.schedules import WarmupStableDecay

EXAMPLES = {"micro": 24_000, "nano": 80_000}
SHARES = {"math": 0.1, "code": 0.25, "knowledge": 0.35, "multilingual": 0.3}
TEXT_STEPS = {"on_device.micro": 300, "on_device.nano": 600, "server.micro": 500, "server.nano": 500}
LENGTHENED = {"micro": 4_096, "nano": 16_384}
NEEDLE_DOCUMENTS = {"micro": 600, "nano": 300}
LONG_STEPS = {"on_device.micro": 60, "on_device.nano": 40, "server.micro": 100, "server.nano": 40}


@recipe("on_device.text_continued", sizes=("micro", "nano"), starts_from="on_device.pretrain")
def on_device_text(size: str) -> RunConfig:
    """Continue on math, code, knowledge and 30 % other languages, sampled by temperature."""
    adamw = AdamWConfig(learning_rate=2e-3, weight_decay=0.0)
    return _text("on_device", size, MuonConfig(learning_rate=0.01, weight_decay=0.0, adamw=adamw))


@recipe("server.text_continued", sizes=("micro", "nano"), starts_from="server.pretrain")
def server_text(size: str) -> RunConfig:
    """Continue on math, code, knowledge and other languages, raised from 8 % to 30 % and sampled by temperature."""
    return _text("server", size, AdamWConfig(learning_rate=1.5e-3, weight_decay=0.0))


@recipe("on_device.long_context", sizes=("micro", "nano"), starts_from="on_device.text_continued", lengthens=True)
def on_device_long(size: str) -> RunConfig:
    """Train four times the context length on long retrieval documents and ordinary text."""
    adamw = AdamWConfig(learning_rate=1e-3, weight_decay=0.0)
    return _long("on_device", size, MuonConfig(learning_rate=0.005, weight_decay=0.0, adamw=adamw))


@recipe("server.long_context", sizes=("micro", "nano"), starts_from="server.text_continued", lengthens=True)
def server_long(size: str) -> RunConfig:
    """Train four times the context length on long retrieval documents and ordinary text."""
    return _long("server", size, AdamWConfig(learning_rate=1e-3, weight_decay=0.0))


def text_corpora(size: str) -> tuple[SyntheticCorpusConfig, ...]:
    """Return the sources of continued text pre-training, with the shares `SHARES`."""
    examples = {name: round(share * EXAMPLES[size]) for name, share in SHARES.items()}
    return (
        english("math", MATH_TASKS, examples["math"]),
        english("code", CODE_TASKS, examples["code"]),
        english("knowledge", KNOWLEDGE_TASKS, examples["knowledge"]),
        multilingual(examples["multilingual"]),
    )


def text_weights(share: float) -> dict[str, float]:
    """Return the weights of these sources in a mixture of which they are a share."""
    return {name: round(weight * share, 4) for name, weight in SHARES.items()}


def _text(model: str, size: str, optimizer: OptimizerConfig) -> RunConfig:
    return RunConfig(
        recipe=f"{model}.text_continued",
        corpora=(
            *text_corpora(size),
            held_out(SHARES["multilingual"], "everything"),
        ),
        tokenizer=None,
        trainer=TrainerConfig(
            model=named_size(f"{model}.{size}"),
            data=LoaderConfig(sources=sources(**SHARES), rows_per_step=2, row_tokens=1024),
            budget=StepBudget(num_steps=TEXT_STEPS[f"{model}.{size}"]),
            optimizer=optimizer,
            schedule=WarmupStableDecay(decay_fraction=0.5),
            evaluation=held_out_evaluation(row_tokens=1024),
            num_threads=1,
        ),
    )


def _long(model: str, size: str, optimizer: OptimizerConfig) -> RunConfig:
    length = LENGTHENED[size]
    needles = NeedlesConfig(
        lengths=(length // 4, length // 2, length),
        num_needles=16,
        text=SyntheticConfig(seed=1, tasks=NANO_TASKS, languages=ENGLISH),
    )
    return RunConfig(
        recipe=f"{model}.long_context",
        corpora=(
            NeedlesCorpusConfig(name="needles", learn="answers", needles=needles, num_examples=NEEDLE_DOCUMENTS[size]),
            english("english", NANO_TASKS, EXAMPLES[size] // 4, learn="answers"),
            multilingual(EXAMPLES[size] // 8, learn="answers"),
            COPIES,
        ),
        tokenizer=None,
        trainer=TrainerConfig(
            model=replace(named_size(f"{model}.{size}"), context_length=length),
            data=LoaderConfig(
                sources=sources(needles=0.5, english=0.28, multilingual=0.12, copies=0.1),
                rows_per_step=2,
                row_tokens=length,
            ),
            microbatch_rows=1,
            budget=StepBudget(num_steps=LONG_STEPS[f"{model}.{size}"]),
            optimizer=optimizer,
            schedule=WarmupStableDecay(decay_fraction=0.5),
            num_threads=1,
        ),
    )
