"""The description of the user's data as config classes; `own_data` reads and applies it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from openafm.core.config import Config
from openafm.data.shards.files import address_of
from openafm.data.shards.manifest import MANIFEST
from openafm.recipes.sources.corpora import Learn


@dataclass(frozen=True, kw_only=True)
class DataSourceConfig(Config):
    """A source of the user's data. `languages` are shares by language, instead of a temperature.

    `learn` None is the recipe's choice: all tokens, or those of the assistant's turns.
    """

    path: str
    name: str = ""
    weight: float = 1.0
    language: str = ""
    temperature: float | None = None
    learn: Learn | None = None
    languages: dict[str, float] | None = None

    def __post_init__(self) -> None:
        self.require(self.weight > 0, f"weight must be above 0, got {self.weight}")
        self.require(self.languages is None or self.temperature is None, "a source has languages or a temperature, not both")

    @property
    def is_packed(self) -> bool:
        """Return whether the source is token shards: a folder of them, or an address in object storage."""
        return address_of(self.path) is not None or (Path(self.path) / MANIFEST).is_file()


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """The user's data: sources, held-out share or evaluation file, and tokenizer."""

    sources: tuple[DataSourceConfig, ...]
    held_out: float | None = None
    eval: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        self.require(len(self.sources) > 0, "sources must not be empty")
        self.require(
            self.held_out is None or 0 <= self.held_out < 1, f"held_out is a share from 0 to below 1, got {self.held_out}"
        )

    def __str__(self) -> str:
        return ", ".join(source.path for source in self.sources)
