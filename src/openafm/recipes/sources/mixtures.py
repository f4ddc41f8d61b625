"""Data mixtures of the recipes: tasks, languages and buckets of the built-in corpus (report 4.3).

The buckets of continued pre-training are math (arithmetic), code (tool calls and JSON), knowledge (all other tasks) and
multilingual (all tasks in the fifteen other languages, with uneven shares as in crawled text).
"""

from __future__ import annotations

from typing import Literal

from openafm.data.copies import CopiesConfig
from openafm.data.loading.loader import LanguagesConfig, LoaderConfig, SourceConfig
from openafm.data.synthetic import LANGUAGES, SyntheticConfig
from openafm.data.synthetic.tasks.mixed import MixedLanguagesConfig
from openafm.recipes.sources.corpora import CopiesCorpusConfig, MixedLanguagesCorpusConfig, SyntheticCorpusConfig
from openafm.training.config import EvaluationConfig

Learn = Literal["everything", "answers"]

# Micro's few tokens are enough for one task in one language (docs/benchmarks.md).
MICRO_TASKS = {"plain_event": 0.9, "note": 0.1}
NANO_TASKS = {"event": 0.16, "agenda": 0.08, "note": 0.03, "notice": 0.03, "tool": 0.24, "form": 0.18, "label": 0.2}
NANO_TASKS |= {"lookup": 0.02, "reorder": 0.03, "tagging": 0.02, "arithmetic": 0.01}
NANO_LANGUAGES = {language: 0.40 if language == "en" else 0.04 for language in LANGUAGES}
NATURAL_SHARE = 0.5  # of requests that people wrote, where their folder is given
ENGLISH = {"en": 1.0}
COPIES = CopiesCorpusConfig(name="copies", learn="answers", copies=CopiesConfig(), num_examples=20_000)

MATH_TASKS = {"arithmetic": 1.0}
CODE_TASKS = {"tool": 0.6, "form": 0.4}
KNOWLEDGE_TASKS = {task: share for task, share in NANO_TASKS.items() if task not in MATH_TASKS | CODE_TASKS}
SFT_MULTILINGUAL_SHARE = 0.2
"""Share of all languages but English in fine-tuning and RLHF (report 5.4)."""
MIXED_LANGUAGES_SHARE = 0.004
"""Share of the multilingual examples that are answered in another language than that of the question (report 5.4)."""
OTHER_LANGUAGES = {language: round(1 / rank, 3) for rank, language in enumerate(LANGUAGES[1:], start=1)}
TEMPERATURE = 3.0
HELD_OUT_EXAMPLES = 600


def micro_corpus(learn: Learn, num_examples: int) -> SyntheticCorpusConfig:
    """Return the corpus of the micro model: English events."""
    synthetic = SyntheticConfig(tasks=MICRO_TASKS, languages=ENGLISH)
    return SyntheticCorpusConfig(name="built_in", learn=learn, synthetic=synthetic, num_examples=num_examples)


def nano_corpora(learn: Learn = "answers") -> tuple[SyntheticCorpusConfig, ...]:
    """Return the training and the held-out corpus of the nano model. Held-out losses are those of answers."""
    train = SyntheticConfig(tasks=NANO_TASKS, languages=NANO_LANGUAGES, natural_share=NATURAL_SHARE)
    held_out = SyntheticConfig(tasks=NANO_TASKS, languages=NANO_LANGUAGES, split="held_out")
    return (
        SyntheticCorpusConfig(name="built_in", learn=learn, synthetic=train, num_examples=400_000),
        SyntheticCorpusConfig(name="held_out", learn="answers", synthetic=held_out, num_examples=1_000),
    )


def nano_evaluation() -> EvaluationConfig:
    """Return the evaluation on the nano model's held-out corpus."""
    return EvaluationConfig(data=one_source("held_out", rows_per_step=4, row_tokens=1024), every_steps=500)


def one_source(name: str, *, rows_per_step: int, row_tokens: int) -> LoaderConfig:
    """Return a loader of one source."""
    source = SourceConfig(name=name, path=name)
    return LoaderConfig(sources=(source,), rows_per_step=rows_per_step, row_tokens=row_tokens)


def english(name: str, tasks: dict[str, float], num_examples: int, learn: Learn = "everything") -> SyntheticCorpusConfig:
    """Return a bucket of English tasks."""
    synthetic = SyntheticConfig(tasks=tasks, languages=ENGLISH)
    return SyntheticCorpusConfig(name=name, learn=learn, synthetic=synthetic, num_examples=num_examples)


def multilingual(num_examples: int, learn: Learn = "everything") -> SyntheticCorpusConfig:
    """Return the bucket of all other languages."""
    synthetic = SyntheticConfig(tasks=NANO_TASKS, languages=OTHER_LANGUAGES)
    return SyntheticCorpusConfig(name="multilingual", learn=learn, synthetic=synthetic, num_examples=num_examples)


def mixed_languages() -> MixedLanguagesCorpusConfig:
    """Return the small corpus of questions that are answered in another language."""
    return MixedLanguagesCorpusConfig(name="mixed", learn="answers", mixed=MixedLanguagesConfig(), num_examples=1_000)


def sft_sources(copies: float) -> tuple[SourceConfig, ...]:
    """Return the report's mixture of fine-tuning beside a share of copies: English to others 80:20, 0.4 % of these mixed."""
    others = (1 - copies) * SFT_MULTILINGUAL_SHARE
    weights = {
        "english": 1 - copies - others,
        "multilingual": others * (1 - MIXED_LANGUAGES_SHARE),
        "mixed": others * MIXED_LANGUAGES_SHARE,
        "copies": copies,
    }
    return sources(**{name: round(weight, 9) for name, weight in weights.items()})


def held_out(multilingual_share: float, learn: Learn) -> SyntheticCorpusConfig:
    """Return held-out conversations, which share no sentence frame, name, place or title with the training split."""
    each = multilingual_share / sum(OTHER_LANGUAGES.values())
    languages = {"en": 1 - multilingual_share} | {code: share * each for code, share in OTHER_LANGUAGES.items()}
    synthetic = SyntheticConfig(tasks=NANO_TASKS, languages=languages, split="held_out")
    return SyntheticCorpusConfig(name="held_out", learn=learn, synthetic=synthetic, num_examples=HELD_OUT_EXAMPLES)


def sources(**weights: float) -> tuple[SourceConfig, ...]:
    """Return sources with these weights. `multilingual` is sampled by temperature over its languages."""
    return tuple(
        LanguagesConfig(name=name, path=name, weight=weight, temperature=TEMPERATURE)
        if name == "multilingual"
        else SourceConfig(name=name, path=name, weight=weight)
        for name, weight in weights.items()
    )


def held_out_evaluation(row_tokens: int) -> EvaluationConfig:
    """Return the evaluation on the corpus `held_out`."""
    return EvaluationConfig(data=LoaderConfig(sources=sources(held_out=1.0), rows_per_step=4, row_tokens=row_tokens))
