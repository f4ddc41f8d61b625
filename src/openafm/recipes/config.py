"""A run as one typed config, and the recipes: named functions that return one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.data.loader import SourceConfig
from openafm.recipes.corpora import CorpusConfig
from openafm.recipes.data_config import DataConfig
from openafm.tokenizer.bpe import TokenizerConfig
from openafm.training.config import TrainerConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A run from raw text to a bundle. `tokenizer` is None if the run uses the tokenizer of a bundle.

    `tokenizer_file` is an existing tokenizer to use. `data` describes the user's data if the run uses it. `plugins` are
    the modules or files that define kinds of this config. They are recorded, not imported, when a run is read.
    """

    recipe: str
    corpora: tuple[CorpusConfig, ...]
    tokenizer: TokenizerConfig | None
    trainer: TrainerConfig
    tokenizer_file: str | None = None
    data: DataConfig | None = None
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rows = self.trainer.model.vocab_size
        self.require(
            self.tokenizer is None or self.tokenizer.vocab_size <= rows,
            f"the tokenizer has {self.tokenizer and self.tokenizer.vocab_size} tokens, the model's vocab_size is {rows};"
            " use a smaller tokenizer or a larger vocab_size",
        )
        corpora = {corpus.name for corpus in self.corpora}
        for source in self.sources:
            self.require(
                source.name in corpora, f"source '{source.name}' has no corpus; corpora: {', '.join(sorted(corpora))}"
            )

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Return the sources that the trainer reads, for training and for evaluation."""
        evaluation = self.trainer.evaluation
        return self.trainer.data.sources + (evaluation.data.sources if evaluation else ())

    @property
    def start(self) -> str | None:
        """Return the bundle whose tokenizer and chat template the run uses: its teacher's or the one it starts from."""
        return self.trainer.objective.start_bundle() or self.trainer.from_bundle

    @property
    def corpora_read(self) -> tuple[CorpusConfig, ...]:
        """Return the corpora that the trainer reads. The others only train the tokenizer."""
        names = {source.name for source in self.sources}
        return tuple(corpus for corpus in self.corpora if corpus.name in names)


class UnknownRecipeError(UsageError):
    """No recipe has this name or size."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named run in several sizes, the default size last; no sizes if the run has only one.

    `starts_from` and `taught_by` name the recipes whose bundles it starts from and learns from by default. With `lengthens`
    the model gets the context length of this recipe's config. `plugins` are the modules that define it outside openafm.
    """

    name: str
    summary: str
    sizes: tuple[str, ...]
    build: Callable[[str], RunConfig]
    starts_from: str | None = None
    lengthens: bool = False
    taught_by: str | None = None
    plugins: tuple[str, ...] = ()

    def __call__(self, size: str) -> RunConfig:
        return self.build(size)

    def checked_size(self, size: str | None) -> str:
        """Return the size, or the default size for None.

        Raises:
            UnknownRecipeError: the recipe has no such size.
        """
        if size is None:
            return self.sizes[-1] if self.sizes else ""
        if size not in (self.sizes or ("",)):
            sizes = f"sizes: {', '.join(self.sizes)}" if self.sizes else "it has one size only; leave --size out"
            raise UnknownRecipeError(f"recipe '{self.name}' has no size '{size}'; {sizes}")
        return size

    def default_name(self, size: str) -> str:
        """Return the default name of the bundle."""
        return f"{self.name}-{size}" if size else self.name


def recipe(
    name: str,
    *,
    sizes: tuple[str, ...],
    starts_from: str | None = None,
    lengthens: bool = False,
    taught_by: str | None = None,
) -> Callable[[Callable[[str], RunConfig]], Recipe]:
    """Turn a function from a size to a `RunConfig` into a recipe. The first line of its docstring is the summary."""

    def wrap(build: Callable[[str], RunConfig]) -> Recipe:
        return Recipe(
            name=name,
            summary=summary_of(build),
            sizes=sizes,
            build=build,
            starts_from=starts_from,
            lengthens=lengthens,
            taught_by=taught_by,
        )

    return wrap


def summary_of(function: Callable[..., object]) -> str:
    """Return the first line of a function's docstring; empty without one."""
    return (function.__doc__ or "").strip().partition("\n")[0]
