"""Multimodal adaptation and fine-tuning of the on-device model (report 4.4, 5.1)."""

from __future__ import annotations

from openafm.data.loader import LoaderConfig
from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for, encoder_of
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.corpora import CorpusConfig
from openafm.recipes.mixtures import KNOWLEDGE_TASKS, english, one_source, sources
from openafm.recipes.vision.mixtures import MODE, RESOLUTIONS, TOKENS_SIDE, drawn
from openafm.training.budgets import TokenBudget
from openafm.training.config import AdamWConfig, EvaluationConfig, TrainerConfig, VisionStart
from openafm.training.schedules import WarmupStableDecay

KINDS = ("charts", "flyers")
NUM_TOKENS = {"micro": 60_000, "nano": 30_000_000}
NUM_EXAMPLES = {"micro": 500, "nano": 40_000}
ROW_TOKENS = {"micro": 1024, "nano": 1024}


@recipe("on_device.multimodal", sizes=("micro", "nano"), starts_from="on_device.sft", sees_with="vision.clip")
def multimodal(size: str) -> RunConfig:
    """Give a text model eyes: 60 % text, 10 % interleaved, 28.5 % captions, 1.5 % domain-specific images."""
    return _run(
        "on_device.multimodal",
        size,
        corpora=(
            english("text", KNOWLEDGE_TASKS, num_examples=NUM_EXAMPLES[size]),
            drawn("interleaved", size, KINDS, ("transcription",)),
            drawn("captions", size, KINDS, ("captions",)),
            drawn("domain", size, KINDS, ("questions",)),
            drawn("held_out", size, KINDS, ("captions", "questions"), held_out=True),
        ),
        weights={"text": 0.6, "interleaved": 0.1, "captions": 0.285, "domain": 0.015},
    )


@recipe("on_device.multimodal_sft", sizes=("micro", "nano"), starts_from="on_device.multimodal")
def multimodal_sft(size: str) -> RunConfig:
    """Fine-tune a multimodal model on questions about images, and on the text model's tasks."""
    return _run(
        "on_device.multimodal_sft",
        size,
        corpora=(
            english("text", KNOWLEDGE_TASKS, num_examples=NUM_EXAMPLES[size], learn="answers"),
            drawn("questions", size, KINDS, ("questions",)),
            drawn("held_out", size, KINDS, ("questions",), held_out=True),
        ),
        weights={"text": 0.4, "questions": 0.6},
    )


def _run(name: str, size: str, *, corpora: tuple[CorpusConfig, ...], weights: dict[str, float]) -> RunConfig:
    vision = encoder_of(f"rw_vitdet.{size}")
    row_tokens = ROW_TOKENS[size]
    return RunConfig(
        recipe=name,
        corpora=corpora,
        tokenizer=None,
        trainer=TrainerConfig(
            model=MultimodalConfig.of(
                named_size(f"on_device.{size}"),
                vision,
                adapter_for(vision, TOKENS_SIDE[size]),
                (RESOLUTIONS[size].mode(MODE),),
            ),
            data=LoaderConfig(sources=sources(**weights), rows_per_step=4, row_tokens=row_tokens),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.05),
            num_threads=1,
            schedule=WarmupStableDecay(decay_fraction=0.3),
            start=VisionStart(),
            evaluation=EvaluationConfig(
                data=one_source("held_out", rows_per_step=2, row_tokens=row_tokens), every_steps=200
            ),
        ),
    )
