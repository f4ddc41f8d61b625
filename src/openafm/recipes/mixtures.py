"""What text stages read: buckets of the built-in corpus (report 4.3), math, code, knowledge and multilingual.

The built-in corpus holds no code and no encyclopaedia: its math is arithmetic, its code tool calls and JSON, its knowledge
all other tasks. The multilingual bucket is every task in the fifteen other languages, uneven as found text is.
"""

from __future__ import annotations

from typing import Literal

from openafm.data.loader import LanguagesConfig, LoaderConfig, SourceConfig
from openafm.data.synthetic import LANGUAGES, SyntheticConfig
from openafm.recipes.config import SyntheticCorpusConfig
from openafm.recipes.on_device import NANO_TASKS
from openafm.training.config import EvaluationConfig

Learn = Literal["everything", "answers"]

MATH_TASKS = {"arithmetic": 1.0}
CODE_TASKS = {"tool": 0.6, "form": 0.4}
KNOWLEDGE_TASKS = {task: share for task, share in NANO_TASKS.items() if task not in MATH_TASKS | CODE_TASKS}
ENGLISH = {"en": 1.0}
OTHER_LANGUAGES = {language: round(1 / rank, 3) for rank, language in enumerate(LANGUAGES[1:], start=1)}
TEMPERATURE = 3.0
HELD_OUT_EXAMPLES = 600


def english(name: str, tasks: dict[str, float], num_examples: int, learn: Learn = "everything") -> SyntheticCorpusConfig:
    """A bucket of English."""
    synthetic = SyntheticConfig(tasks=tasks, languages=ENGLISH)
    return SyntheticCorpusConfig(name=name, learn=learn, synthetic=synthetic, num_examples=num_examples)


def multilingual(num_examples: int, learn: Learn = "everything") -> SyntheticCorpusConfig:
    """The bucket of all other languages."""
    synthetic = SyntheticConfig(tasks=NANO_TASKS, languages=OTHER_LANGUAGES)
    return SyntheticCorpusConfig(name="multilingual", learn=learn, synthetic=synthetic, num_examples=num_examples)


def held_out(multilingual_share: float, learn: Learn) -> SyntheticCorpusConfig:
    """Conversations that share no sentence frame, name, place or title with the rest."""
    each = multilingual_share / sum(OTHER_LANGUAGES.values())
    languages = {"en": 1 - multilingual_share} | {code: share * each for code, share in OTHER_LANGUAGES.items()}
    synthetic = SyntheticConfig(tasks=NANO_TASKS, languages=languages, split="held_out")
    return SyntheticCorpusConfig(name="held_out", learn=learn, synthetic=synthetic, num_examples=HELD_OUT_EXAMPLES)


def sources(**weights: float) -> tuple[SourceConfig, ...]:
    """Sources by name with their weights; `multilingual` is shared out among its languages by temperature."""
    return tuple(
        LanguagesConfig(name=name, path=name, weight=weight, temperature=TEMPERATURE)
        if name == "multilingual"
        else SourceConfig(name=name, path=name, weight=weight)
        for name, weight in weights.items()
    )


def held_out_evaluation(row_tokens: int) -> EvaluationConfig:
    """The loss on the corpus `held_out`."""
    return EvaluationConfig(data=LoaderConfig(sources=sources(held_out=1.0), rows_per_step=4, row_tokens=row_tokens))
