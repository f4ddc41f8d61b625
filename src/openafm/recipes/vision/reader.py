"""A compact decoder with vision that reads flyers into events: first it learns to transcribe, then to answer.

The report has no such stage. It is the one narrow skill that a model of this size may learn: `benchmarks/flyers.py` compares
it with tesseract and regular expressions.
"""

from __future__ import annotations

from dataclasses import replace

from openafm.data.images.packing import Learned
from openafm.data.loading.loader import LoaderConfig, SourceConfig
from openafm.models.sizes import named_size
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.models.vision.sizes import adapter_for
from openafm.recipes.config import RunConfig, recipe
from openafm.recipes.sources.drawn_corpus import DrawnCorpusConfig
from openafm.recipes.sources.mixtures import one_source, sources
from openafm.recipes.vision.mixtures import RESOLUTIONS, TOKENS_SIDE, drawn, encoder_at
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.budgets import TokenBudget
from openafm.training.config import EvaluationConfig, TrainerConfig
from openafm.training.optimizer_config import AdamWConfig
from openafm.training.schedules import WarmupCosine

NUM_TOKENS = {"micro": 60_000, "nano": 40_000_000}
ROW_TOKENS = {"micro": 1024, "nano": 2048}
LANGUAGES = ("en",)


@recipe("vision.transcribe", sizes=("micro", "nano"))
def transcribe(size: str) -> RunConfig:
    """Train a compact decoder with vision to transcribe drawn signs and documents in English, from fresh weights."""
    corpora = (
        _english("signs", size, ("signs",), ("transcription",)),
        _english("documents", size, ("documents",), ("transcription",)),
        _english("held_out", size, ("signs", "documents"), ("transcription",), held_out=True),
    )
    return _run("vision.transcribe", size, corpora, sources(signs=0.6, documents=0.4))


@recipe("vision.reader", sizes=("micro", "nano"), starts_from="vision.transcribe")
def reader(size: str) -> RunConfig:
    """Train it further to transcribe English flyers and to answer questions about them, one of them for the event."""
    corpora = (
        _english("flyers", size, ("flyers",), ("transcription", "questions")),
        _english("signs", size, ("signs",), ("transcription",)),
        _english("held_out", size, ("flyers",), ("questions",), held_out=True),
    )
    return _run("vision.reader", size, corpora, sources(flyers=0.85, signs=0.15))


def _english(
    name: str, size: str, kinds: tuple[str, ...], learn: tuple[Learned, ...], *, held_out: bool = False
) -> DrawnCorpusConfig:
    corpus = drawn(name, size, kinds, learn, resolution=RESOLUTIONS[size], held_out=held_out)
    return replace(corpus, drawing=replace(corpus.drawing, languages=LANGUAGES))


def _run(name: str, size: str, corpora: tuple[DrawnCorpusConfig, ...], mixture: tuple[SourceConfig, ...]) -> RunConfig:
    decoder, vision = named_size(f"compact.{size}"), encoder_at("rw_vitdet", size, RESOLUTIONS[size])
    return RunConfig(
        recipe=name,
        corpora=corpora,
        tokenizer=TokenizerConfig(vocab_size=decoder.vocab_size, spaces="apart"),
        trainer=TrainerConfig(
            model=MultimodalConfig.of(
                decoder, vision, adapter_for(vision, TOKENS_SIDE[size]), (RESOLUTIONS[size].mode("balanced"),)
            ),
            data=LoaderConfig(sources=mixture, rows_per_step=2, row_tokens=ROW_TOKENS[size]),
            budget=TokenBudget(num_tokens=NUM_TOKENS[size]),
            optimizer=AdamWConfig(learning_rate=1e-3, weight_decay=0.1),
            num_threads=1,
            schedule=WarmupCosine(),
            evaluation=EvaluationConfig(
                data=one_source("held_out", rows_per_step=2, row_tokens=ROW_TOKENS[size]), every_steps=200
            ),
        ),
    )
