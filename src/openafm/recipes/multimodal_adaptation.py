"""Multimodal adaptation and fine-tuning of both models (report 4.4, 5.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from openafm.data.images.resolution import Mode, ResolutionConfig
from openafm.data.loading.loader import LoaderConfig
from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.continued_pretraining import EXAMPLES, SHARES, text_corpora, text_weights
from openafm.recipes.sources.corpora import CorpusConfig, Learn
from openafm.recipes.sources.mixtures import NANO_TASKS, english, held_out, multilingual, sources
from openafm.recipes.vision.mixtures import (
    ASKED,
    COARSE,
    RESOLUTIONS,
    SERVER_RESOLUTIONS,
    TEXT_RICH,
    TOKENS_SIDE,
    drawn,
    encoder_at,
    vision_corpora,
)
from openafm.training.budgets import TokenBudget
from openafm.training.config import EvaluationConfig, TrainerConfig, VisionStart
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupStableDecay

NUM_TOKENS = {"micro": 60_000, "nano": 30_000_000}
ROW_TOKENS = {"micro": 1024, "nano": 2048}
SIZES = ("micro", "nano")


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the two models differ in: the encoder, its resolutions by size, and the modes of fine-tuning."""

    encoder: str
    resolutions: dict[str, ResolutionConfig]
    modes: tuple[Mode, ...]


FAMILIES = {
    "on_device": Family(encoder="rw_vitdet", resolutions=RESOLUTIONS, modes=("balanced", "high", "rapid")),
    "server": Family(encoder="vit", resolutions=SERVER_RESOLUTIONS, modes=("balanced", "high")),
}


@recipe("on_device.multimodal", sizes=SIZES, starts_from="on_device.text_continued", sees_with="vision.joint")
def on_device(size: str) -> RunConfig:
    """Add vision to a text model: 60 % text, 10 % interleaved, 28.5 % captions, 1.5 % domain-specific images."""
    return _adaptation("on_device", size)


@recipe("on_device.multimodal_sft", sizes=SIZES, starts_from="on_device.multimodal")
def on_device_sft(size: str) -> RunConfig:
    """Fine-tune a multimodal model on questions about images in all resolution modes, and on the text model's tasks."""
    return _fine_tuning("on_device", size)


@recipe("server.multimodal", sizes=SIZES, starts_from="server.text_continued", sees_with="vision.server_joint")
def server(size: str) -> RunConfig:
    """Add vision to a text model: 60 % text, 10 % interleaved, 28.5 % captions, 1.5 % domain-specific images."""
    return _adaptation("server", size)


@recipe("server.multimodal_sft", sizes=SIZES, starts_from="server.multimodal")
def server_sft(size: str) -> RunConfig:
    """Fine-tune a multimodal model on questions about images, whole and in tiles, and on the text model's tasks."""
    return _fine_tuning("server", size)


def _adaptation(model: str, size: str) -> RunConfig:
    return _run(
        f"{model}.multimodal",
        model,
        size,
        corpora=(*text_corpora(size), *vision_corpora(size, FAMILIES[model].resolutions[size])),
        weights={**text_weights(0.6), "interleaved": 0.1, "captions": 0.285, "domain": 0.015},
        learn="everything",
        modes=("balanced",),
    )


def _fine_tuning(model: str, size: str) -> RunConfig:
    resolution = FAMILIES[model].resolutions[size]
    return _run(
        f"{model}.multimodal_sft",
        model,
        size,
        corpora=(
            english("text", NANO_TASKS, num_examples=EXAMPLES[size] // 2, learn="answers"),
            multilingual(EXAMPLES[size] // 4, learn="answers"),
            drawn("questions", size, TEXT_RICH, ("questions",), resolution=resolution, draws_modes=True),
            drawn("scene_questions", size, COARSE, ("questions",), resolution=resolution, draws_modes=True),
            drawn("held_out", size, ASKED, ("questions",), resolution=resolution, held_out=True),
        ),
        weights={"text": 0.25, "multilingual": 0.15, "questions": 0.4, "scene_questions": 0.2},
        learn="answers",
        modes=FAMILIES[model].modes,
    )


def _run(
    name: str,
    model: str,
    size: str,
    *,
    corpora: tuple[CorpusConfig, ...],
    weights: dict[str, float],
    learn: Learn,
    modes: tuple[Mode, ...],
) -> RunConfig:
    """Return a run. It evaluates text too: the report's adaptation avoids regressions on text."""
    resolution, row_tokens = FAMILIES[model].resolutions[size], ROW_TOKENS[size]
    vision = encoder_at(FAMILIES[model].encoder, size, resolution)
    return RunConfig(
        recipe=name,
        corpora=(*corpora, replace(held_out(SHARES["multilingual"], learn), name="held_out_text")),
        tokenizer=None,
        trainer=TrainerConfig(
            model=MultimodalConfig.of(
                named_size(f"{model}.{size}"),
                vision,
                adapter_for(vision, TOKENS_SIDE[size]),
                tuple(resolution.mode(mode) for mode in modes),
            ),
            data=LoaderConfig(sources=sources(**weights), rows_per_step=2, row_tokens=row_tokens),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.05),
            num_threads=1,
            schedule=WarmupStableDecay(decay_fraction=0.3),
            start=VisionStart(),
            evaluation=EvaluationConfig(
                data=LoaderConfig(sources=sources(held_out=0.5, held_out_text=0.5), rows_per_step=2, row_tokens=row_tokens),
                every_steps=200,
            ),
        ),
    )
