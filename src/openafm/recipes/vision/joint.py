"""Joint training of the vision encoder with an adapter and a compact decoder, at a higher resolution (report 4.2)."""

from __future__ import annotations

from openafm.data.loading.loader import LoaderConfig
from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.continued_pretraining import text_corpora, text_weights
from openafm.recipes.sources.mixtures import one_source, sources
from openafm.recipes.vision.mixtures import RESOLUTIONS, TOKENS_SIDE, encoder_at, vision_corpora
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.budgets import TokenBudget
from openafm.training.config import EvaluationConfig, TrainerConfig, VisionStart
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupCosine

NUM_TOKENS = {"micro": 60_000, "nano": 40_000_000}
ROW_TOKENS = {"micro": 1024, "nano": 2048}
TEXT_SHARE = 0.3
WEIGHTS = {"interleaved": 0.15, "captions": 0.4, "domain": 0.15}
"""The report names the sources and gives no shares."""


@recipe("vision.joint", sizes=("micro", "nano"), sees_with="vision.clip")
def joint(size: str) -> RunConfig:
    """Train the on-device encoder with a compact decoder on text, captions, interleaved and domain-specific images."""
    return _run("vision.joint", size, "rw_vitdet")


@recipe("vision.server_joint", sizes=("micro", "nano"), sees_with="vision.server_clip")
def server_joint(size: str) -> RunConfig:
    """Train the server's encoder with a compact decoder on text, captions, interleaved and domain-specific images."""
    return _run("vision.server_joint", size, "vit")


def _run(name: str, size: str, encoder: str) -> RunConfig:
    decoder, vision = named_size(f"compact.{size}"), encoder_at(encoder, size, RESOLUTIONS[size])
    return RunConfig(
        recipe=name,
        corpora=(*text_corpora(size), *vision_corpora(size, RESOLUTIONS[size])),
        tokenizer=TokenizerConfig(vocab_size=decoder.vocab_size, spaces="apart"),
        trainer=TrainerConfig(
            model=MultimodalConfig.of(
                decoder, vision, adapter_for(vision, TOKENS_SIDE[size]), (RESOLUTIONS[size].mode("balanced"),)
            ),
            data=LoaderConfig(
                sources=sources(**text_weights(TEXT_SHARE), **WEIGHTS), rows_per_step=2, row_tokens=ROW_TOKENS[size]
            ),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.1),
            num_threads=1,
            schedule=WarmupCosine(),
            start=VisionStart(),
            evaluation=EvaluationConfig(
                data=one_source("held_out", rows_per_step=2, row_tokens=ROW_TOKENS[size]), every_steps=200
            ),
        ),
    )
