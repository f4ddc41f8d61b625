"""Contrastive pre-training of the vision encoder with FLIP masking (report 4.2)."""

from __future__ import annotations

from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import ClipConfig
from openafm.models.vision.sizes import encoder_of
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.mixtures import one_source
from openafm.recipes.vision.mixtures import drawn
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.budgets import TokenBudget
from openafm.training.config import AdamWConfig, EvaluationConfig, TrainerConfig
from openafm.training.objectives.config import ContrastiveConfig
from openafm.training.schedules import WarmupCosine

KINDS = ("charts", "flyers")
KEPT = 0.5
"""Share of the patches that are encoded."""
NUM_TOKENS = {"micro": 60_000, "nano": 40_000_000}
ROWS = {"micro": 4, "nano": 8}


@recipe("vision.clip", sizes=("micro", "nano"))
def clip(size: str) -> RunConfig:
    """Train the vision encoder to match images and captions, against a text tower (CLIP with FLIP masking)."""
    text = named_size(f"on_device.{size}")
    return RunConfig(
        recipe="vision.clip",
        corpora=(
            drawn("captions", size, KINDS, ("captions",)),
            drawn("held_out", size, KINDS, ("captions",), held_out=True),
        ),
        tokenizer=TokenizerConfig(vocab_size=text.vocab_size, spaces="apart"),
        trainer=TrainerConfig(
            model=ClipConfig.of(text, encoder_of(f"rw_vitdet.{size}"), kept=KEPT),
            objective=ContrastiveConfig(),
            data=one_source("captions", rows_per_step=ROWS[size], row_tokens=1024),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.1),
            num_threads=1,
            schedule=WarmupCosine(),
            evaluation=EvaluationConfig(data=one_source("held_out", rows_per_step=2, row_tokens=1024), every_steps=200),
        ),
    )
