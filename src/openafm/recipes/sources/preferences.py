"""Corpora of preferences, and the user's preference files in place of a recipe's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from openafm.core.config import ConfigError
from openafm.core.terminal import escaped
from openafm.data.loading.loader import SourceConfig
from openafm.data.pack import HELD_OUT
from openafm.data.preferences import Preference, pack_preferences, read_preferences
from openafm.data.synthetic import SyntheticConfig, generate
from openafm.data.synthetic.tasks.preferences import SimulatedGradersConfig, simulated_preferences
from openafm.recipes.config import RunConfig
from openafm.recipes.sources.corpora import CorpusConfig
from openafm.recipes.sources.data_config import DataConfig
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.template import BaseChatTemplate
from openafm.training.config import EvaluationConfig

HELD_OUT_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class PreferencesCorpusConfig(CorpusConfig):
    """The preference files at `path` (`data/preferences.py`). Lines of more than `max_tokens` tokens are left out.

    A share `held_out` of the prompts goes to the subfolder `held_out` of the shards, for evaluation.
    """

    path: str
    max_tokens: int
    held_out: float = HELD_OUT_SHARE

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        _pack(read_preferences(Path(self.path)), out, tokenizer, template, self.max_tokens, self.held_out)

    def fingerprint(self) -> str:
        """Return the sizes and modification times of the files."""
        path = Path(self.path)
        files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        return json.dumps({str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files})

    @property
    def description(self) -> str:
        return f"preferences of the user's files ({Path(self.path).name})"


@dataclass(frozen=True, kw_only=True)
class SimulatedPreferencesCorpusConfig(CorpusConfig):
    """Pairs of right and damaged answers to examples of the built-in corpus, judged by simulated graders."""

    synthetic: SyntheticConfig
    graders: SimulatedGradersConfig = field(default_factory=SimulatedGradersConfig)
    num_examples: int
    max_tokens: int
    held_out: float = HELD_OUT_SHARE

    def pack(self, out: Path, tokenizer: Tokenizer, template: BaseChatTemplate) -> None:
        preferences = simulated_preferences(self.graders, generate(self.synthetic, self.num_examples))
        _pack(preferences, out, tokenizer, template, self.max_tokens, self.held_out)

    @property
    def description(self) -> str:
        return (
            f"right and damaged answers to {self.num_examples:,} examples of the built-in corpus, judged by simulated "
            f"graders who prefer the worse answer in {self.graders.noise:.0%} of the pairs"
        )


def with_preferences(config: RunConfig, data: DataConfig) -> RunConfig:
    """Return the run of a reward model on the user's preference files.

    Raises:
        ConfigError: the data has an option that preferences do not have.
    """
    if data.eval is not None or data.tokenizer is not None or any(source.is_packed for source in data.sources):
        raise ConfigError(
            "data of a reward model is preference files (.jsonl) with an optional 'held_out' share; remove 'eval', "
            "'tokenizer' and folders of token shards"
        )
    share = HELD_OUT_SHARE if data.held_out is None else data.held_out
    loader = config.trainer.data
    corpora = tuple(
        PreferencesCorpusConfig(name=source.name, path=source.path, max_tokens=loader.row_tokens, held_out=share)
        for source in data.sources
    )
    total = sum(source.weight for source in data.sources)
    sources = tuple(SourceConfig(name=s.name, path=s.name, weight=s.weight / total) for s in data.sources)
    trainer = replace(config.trainer, data=replace(loader, sources=sources), evaluation=None)
    if share:
        held_out = tuple(replace(source, path=f"{source.path}/{HELD_OUT}") for source in sources)
        trainer = replace(trainer, evaluation=EvaluationConfig(data=replace(loader, sources=held_out)))
    return replace(config, corpora=corpora, trainer=trainer, data=data)


def with_row_limit(config: RunConfig) -> RunConfig:
    """Return the run with corpora of preferences that leave out lines longer than a row."""
    rows = config.trainer.data.row_tokens
    kinds = PreferencesCorpusConfig | SimulatedPreferencesCorpusConfig
    corpora = tuple(
        replace(each, max_tokens=min(each.max_tokens, rows)) if isinstance(each, kinds) else each for each in config.corpora
    )
    return replace(config, corpora=corpora)


def _pack(
    preferences: Iterable[Preference],
    out: Path,
    tokenizer: Tokenizer,
    template: BaseChatTemplate,
    max_tokens: int,
    held_out: float,
) -> None:
    report = pack_preferences(preferences, out, tokenizer, template, max_tokens=max_tokens, held_out=held_out)
    if report.num_too_long:
        note = f"{report.num_too_long:,} preferences are longer than a row of {max_tokens} tokens and were left out"
        print(escaped(note), file=sys.stderr, flush=True)
