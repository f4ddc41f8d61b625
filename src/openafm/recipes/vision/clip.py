"""Contrastive pre-training of the vision encoder with FLIP masking, and without it at the end (report 4.2)."""

from __future__ import annotations

from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import ClipConfig
from openafm.models.vision.sizes import encoder_of
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.mixtures import one_source
from openafm.recipes.vision.mixtures import CAPTIONED, CLIP_RESOLUTIONS, drawn
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.budgets import TokenBudget
from openafm.training.config import EvaluationConfig, TrainerConfig
from openafm.training.objectives.config import ContrastiveConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupCosine

NUM_TOKENS = {"micro": 60_000, "nano": 12_000_000}
ROWS = {"micro": 2, "nano": 4}


@recipe("vision.clip", sizes=("micro", "nano"))
def clip(size: str) -> RunConfig:
    """Train the on-device encoder to match images and captions, against a text tower (CLIP with FLIP masking)."""
    return _run("vision.clip", size, "rw_vitdet")


@recipe("vision.server_clip", sizes=("micro", "nano"))
def server_clip(size: str) -> RunConfig:
    """Train the server's encoder to match images and captions, against a text tower (CLIP with FLIP masking)."""
    return _run("vision.server_clip", size, "vit")


def _run(name: str, size: str, encoder: str) -> RunConfig:
    text = named_size(f"compact.{size}")
    return RunConfig(
        recipe=name,
        corpora=(
            drawn("captions", size, CAPTIONED, ("captions",), resolution=CLIP_RESOLUTIONS[size]),
            drawn("held_out", size, CAPTIONED, ("captions",), held_out=True, resolution=CLIP_RESOLUTIONS[size]),
        ),
        tokenizer=TokenizerConfig(vocab_size=text.vocab_size, spaces="apart"),
        trainer=TrainerConfig(
            model=ClipConfig.of(text, encoder_of(f"{encoder}.{size}")),
            objective=ContrastiveConfig(kept=0.5, unmasked_share=0.1),
            data=one_source("captions", rows_per_step=ROWS[size], row_tokens=1024),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.1),
            num_threads=1,
            schedule=WarmupCosine(),
            evaluation=EvaluationConfig(data=one_source("held_out", rows_per_step=2, row_tokens=1024), every_steps=200),
        ),
    )
