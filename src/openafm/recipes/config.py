"""What a recipe is: where the data comes from, what reads it, and how to train."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from openafm.core.config import Config, nearest
from openafm.core.errors import UsageError
from openafm.data.copies import CopiesConfig
from openafm.data.loader import SourceConfig
from openafm.data.needles import NeedlesConfig
from openafm.data.synthetic import SyntheticConfig
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.config import TrainerConfig
from openafm.training.objectives.config import DistillationConfig


class UnknownRecipeError(UsageError):
    """No recipe of this name or size."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(Config):
    """Base of the ways to get a source's token shards. `name` is that of the trainer's source that reads them.

    `learn` says which tokens carry loss: all of them, or those the assistant wrote.
    """

    name: str
    learn: Literal["everything", "answers"] = "everything"


@dataclass(frozen=True, kw_only=True)
class SyntheticCorpusConfig(CorpusConfig):
    """The first `num_examples` examples of the built-in corpus."""

    synthetic: SyntheticConfig
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class CopiesCorpusConfig(CorpusConfig):
    """`num_examples` documents of random tokens that repeat themselves; only the repetition is learned."""

    copies: CopiesConfig
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class NeedlesCorpusConfig(CorpusConfig):
    """`num_examples` long documents with something to find in them; only what is found is learned."""

    needles: NeedlesConfig
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class FolderCorpusConfig(CorpusConfig):
    """Text, Markdown or JSONL files of the user's own, below `path`."""

    path: str
    language: str = ""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A run from raw text to a bundle. `tokenizer` is None when the run starts from a bundle and keeps its tokenizer."""

    recipe: str
    corpora: tuple[CorpusConfig, ...]
    tokenizer: TokenizerConfig | None
    trainer: TrainerConfig

    def __post_init__(self) -> None:
        rows = self.trainer.model.vocab_size
        self.require(
            self.tokenizer is None or self.tokenizer.vocab_size <= rows,
            f"a tokenizer of {self.tokenizer and self.tokenizer.vocab_size} tokens does not fit a model of {rows} rows",
        )
        corpora = {corpus.name for corpus in self.corpora}
        for source in self.sources:
            self.require(
                source.name in corpora, f"source '{source.name}' has no corpus; corpora: {', '.join(sorted(corpora))}"
            )

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """What the trainer reads, to learn from or to be judged by."""
        evaluation = self.trainer.evaluation
        return self.trainer.data.sources + (evaluation.data.sources if evaluation else ())

    @property
    def start(self) -> str | None:
        """The bundle whose tokenizer and chat template the run keeps: the one it starts from or learns from."""
        objective = self.trainer.objective
        return objective.teacher if isinstance(objective, DistillationConfig) else self.trainer.from_bundle

    @property
    def corpora_read(self) -> tuple[CorpusConfig, ...]:
        """The corpora that a source of the trainer reads; others only serve the tokenizer."""
        names = {source.name for source in self.sources}
        return tuple(corpus for corpus in self.corpora if corpus.name in names)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named run in several sizes. `starts_from` tells what `--from` must give, None when it starts from nothing.

    One that `lengthens` gives the model it starts from the context length of its own config. `taught_by` is the recipe whose
    bundle it learns from unless another is named.
    """

    name: str
    summary: str
    sizes: tuple[str, ...]
    build: Callable[[str], RunConfig]
    starts_from: str | None = None
    lengthens: bool = False
    taught_by: str | None = None


RECIPES: dict[str, Recipe] = {}
STAGES = (
    "pretrain",
    "trunk",
    "upcycle_teacher",
    "distill",
    "text_continued",
    "long_context",
    "sft",
    "qat",
    "recovery_adapter",
    "draft",
)


def recipe(
    name: str,
    *,
    sizes: tuple[str, ...],
    starts_from: str | None = None,
    lengthens: bool = False,
    taught_by: str | None = None,
) -> Callable[[Callable[[str], RunConfig]], Callable[[str], RunConfig]]:
    """Register a function from a size to a `RunConfig`; the first line of its docstring is the summary."""

    def register(build: Callable[[str], RunConfig]) -> Callable[[str], RunConfig]:
        summary = (build.__doc__ or "").strip().splitlines()[0]
        RECIPES[name] = Recipe(
            name=name,
            summary=summary,
            sizes=sizes,
            build=build,
            starts_from=starts_from,
            lengthens=lengthens,
            taught_by=taught_by,
        )
        return build

    return register


def all_recipes() -> list[Recipe]:
    """Every recipe, in the order of the report."""
    for room in ("on_device", "upcycling", "server", "continued"):
        importlib.import_module(f"openafm.recipes.{room}")
    return sorted(RECIPES.values(), key=lambda found: _place_in_report(found.name))


def _place_in_report(name: str) -> tuple[int, int]:
    """The on-device model before the server's, and each model's stages as they follow; other names come last."""
    model, _, stage = name.partition(".")
    return _index(model, ("on_device", "server")), _index(stage, STAGES)


def _index(name: str, order: tuple[str, ...]) -> int:
    return order.index(name) if name in order else len(order)


def find_recipe(name: str) -> Recipe:
    """The recipe of this name.

    Raises:
        UnknownRecipeError: there is none; the message gives the nearest.
    """
    found = {recipe.name: recipe for recipe in all_recipes()}
    if name not in found:
        raise UnknownRecipeError(f"unknown recipe '{name}'{nearest(name, list(found))}")
    return found[name]


def build_run(name: str, size: str) -> RunConfig:
    """The complete config of a recipe at a size.

    Raises:
        UnknownRecipeError: no such recipe, or not at this size.
    """
    found = find_recipe(name)
    if size not in found.sizes:
        raise UnknownRecipeError(f"recipe '{name}' has no size '{size}'; sizes: {', '.join(found.sizes)}")
    return found.build(size)
