"""A pipeline as one typed config: stages over shards, limits of each document, and the executor."""

from __future__ import annotations

import itertools
from abc import ABC
from dataclasses import dataclass
from typing import Literal

from openafm.core.config import Config
from openafm.core.executors import ExecutorConfig, LocalConfig
from openafm.core.worker_process import LimitsConfig
from openafm.data.deduplication.base import DeduplicationConfig
from openafm.data.extraction.base import PageExtractorConfig
from openafm.data.filtering.base import FilterConfig
from openafm.data.rendering.config import RenderConfig

PAGE_REASONS = ("status", "content_type", "training_opt_out")
"""Reasons for which a page is dropped before extraction: its HTTP status is not 200, it is not HTML, or it must not be used
for training."""
QUARANTINE_REASONS = ("cpu_time", "wall_time", "memory", "killed", "crashed", "error", "invalid_text", "unreadable")
"""Reasons for which a single document is quarantined: it exceeded a limit, ended the worker process, raised an error, has
text that is not Unicode, or the rest of its file cannot be read."""


LIMITS = LimitsConfig(cpu_seconds=20.0, wall_seconds=120.0, memory_mb=4096)
LOCAL = LocalConfig()


@dataclass(frozen=True, kw_only=True)
class StageConfig(Config, ABC):
    """Base of the stages. `name` is the folder of the stage's results and its name in reports."""

    name: str

    def __post_init__(self) -> None:
        is_name = bool(self.name) and all(char.isalnum() or char in "-_" for char in self.name)
        self.require(is_name, f"name is {self.name!r}; use letters, digits, - and _")


@dataclass(frozen=True, kw_only=True)
class ExtractionStageConfig(StageConfig):
    """Pages of WARC files -> documents, through one extractor and any number of filters.

    `opt_outs` "keep" keeps documents that must not be used for training, marked in the column `opt_out`. With `rendering`,
    pages that need scripts and were not rendered by the crawl are rendered from the scripts and data in their WARC file.
    """

    name: str = "extract"
    extraction: PageExtractorConfig
    filters: tuple[FilterConfig, ...] = ()
    opt_outs: Literal["drop", "keep"] = "drop"
    max_page_mb: int = 16
    rendering: RenderConfig | None = None


@dataclass(frozen=True, kw_only=True)
class OptOutStageConfig(StageConfig):
    """Documents -> documents whose publisher has not opted out of training in a newer record of the same input.

    It follows the extraction. The newest record of a URL decides for all its records, and robots.txt files in the input, of
    each origin the newest one, decide for its URLs. `opt_outs` "keep" marks the documents in the column `opt_out`.
    """

    name: str = "opt_outs"
    opt_outs: Literal["drop", "keep"] = "drop"


@dataclass(frozen=True, kw_only=True)
class FilterStageConfig(StageConfig):
    """Documents -> documents, through filters in order."""

    name: str = "filter"
    filters: tuple[FilterConfig, ...]


@dataclass(frozen=True, kw_only=True)
class DeduplicationStageConfig(StageConfig):
    """Documents -> documents without repetitions over all shards."""

    name: str = "deduplicate"
    deduplication: DeduplicationConfig


@dataclass(frozen=True, kw_only=True)
class PipelineConfig(Config):
    """Stages from input files to a corpus.

    Input files are divided into shards of about `shard_mb`, as stored. `limits` apply to each document; a document that
    exceeds them is quarantined. The run fails if more than `max_quarantined` of a stage's documents are, because then a
    stage is broken, not a document. `executor` changes the time that a run takes and never its results.
    """

    recipe: str = ""
    stages: tuple[StageConfig, ...]
    limits: LimitsConfig = LIMITS
    executor: ExecutorConfig = LOCAL
    shard_mb: int = 32
    max_quarantined: float = 0.2
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        self.require(len(names) > 0, "stages must not be empty")
        self.require(len(set(names)) == len(names), f"stages must have different names, got {', '.join(names)}")
        self.require(self.shard_mb >= 1, f"shard_mb must be at least 1, got {self.shard_mb}")
        self.require(0 < self.max_quarantined <= 1, f"max_quarantined is a share above 0 to 1, got {self.max_quarantined}")
        later = [stage.name for stage in self.stages[1:] if isinstance(stage, ExtractionStageConfig)]
        self.require(not later, f"stage '{''.join(later[:1])}' reads pages, which only the first stage can")
        for before, stage in itertools.pairwise((None, *self.stages)):
            follows = not isinstance(stage, OptOutStageConfig) or isinstance(before, ExtractionStageConfig)
            self.require(
                follows, f"stage '{getattr(stage, 'name', '')}' must follow the extraction, whose pages it compares"
            )

    @property
    def reads_pages(self) -> bool:
        """True if the input is WARC files; False for Parquet files of documents."""
        return isinstance(self.stages[0], ExtractionStageConfig)
