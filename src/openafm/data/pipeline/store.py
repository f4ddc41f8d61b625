"""Results of a pipeline by key: what was computed once is found again, also after the process was killed.

    corpus/
      corpus.json                   the manifest: config, inputs, stages with counts, files of the corpus with digests
      counters.json                 the counts as OpenMetrics-style samples
      documents/00000.parquet       the documents that all stages kept
      stages/<stage>/<key>.documents.parquet, <key>.dropped.parquet, <key>.json; of an extraction <key>.facts.parquet
      stages/<stage>/manifest.json  the keys of the stage in order, and its counts

A key is a digest of the stage's config, of the digests of its inputs and of `CODE_VERSION`. Files are written beside their
place and renamed; the record `<key>.json` is last, so a result is complete if its record exists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.errors import OpenAFMError
from openafm.core.files import file_digest, write_json
from openafm.core.registry import FILE_PLUGIN

CODE_VERSION = 2
"""Increase it when the results of the pipeline's own code change."""
MANIFEST = "corpus.json"
COUNTERS = "counters.json"
DOCUMENTS = "documents"
STAGES = "stages"
FORMAT = "openafm.corpus"


class CorpusError(OpenAFMError):
    """A folder is not a corpus of the pipeline, or its manifest is damaged."""


class UncountedError(OpenAFMError):
    """Documents of a shard are neither kept nor dropped; an error of a stage's code."""


@dataclass(frozen=True, kw_only=True)
class StoredFile(Config):
    """A file of a result: path below the corpus, rows, size and SHA-256."""

    path: str
    num_rows: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ShardRecord(Config):
    """The result of a stage for one shard.

    `dropped` counts by reason; `seconds` is CPU time and not part of the result. `facts` has what the pages of an extraction
    say about training.
    """

    key: str
    num_in: int
    documents: StoredFile
    drops: StoredFile
    dropped: dict[str, int]
    languages: dict[str, int]
    characters: int
    seconds: float
    facts: StoredFile | None = None

    @property
    def num_kept(self) -> int:
        return self.documents.num_rows

    def check(self) -> None:
        """Check that every document is counted.

        Raises:
            UncountedError: the counts do not add up.
        """
        num_dropped = sum(self.dropped.values())
        if self.num_in != self.num_kept + num_dropped or num_dropped != self.drops.num_rows:
            raise UncountedError(
                f"{self.documents.path}: {self.num_in} documents in, {self.num_kept} kept, {num_dropped} dropped, "
                f"{self.drops.num_rows} drops written; report this error with the config of the stage"
            )


@dataclass(frozen=True, kw_only=True)
class StageSummary(Config):
    """The counts of a stage over all shards. `languages` and `characters` are of the documents kept.

    `reduce_seconds` is the CPU time of signatures and decisions in the run that wrote the summary.
    """

    name: str
    config_digest: str
    num_in: int
    num_kept: int
    dropped: dict[str, int]
    languages: dict[str, int]
    characters: int
    shards: tuple[ShardRecord, ...]
    reduce_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """CPU seconds of the stage."""
        return sum(shard.seconds for shard in self.shards) + self.reduce_seconds


@dataclass(frozen=True, kw_only=True)
class InputFile(Config):
    """A file that the first stage reads. `split_at` are the bytes at which its shards after the first begin."""

    path: str
    num_bytes: int
    sha256: str
    split_at: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CorpusManifest(Config):
    """The content of `corpus.json`.

    `config` is the JSON form of the `PipelineConfig`, without its executor. `notes` name what the run left out.
    """

    format: str = FORMAT
    version: int = 1
    config: dict[str, Any]
    inputs: tuple[InputFile, ...]
    stages: tuple[StageSummary, ...]
    documents: tuple[StoredFile, ...]
    digest: str = field(default="")
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.require(self.format == FORMAT, f"the format is {self.format!r}, expected {FORMAT!r}")
        self.require(self.version == 1, f"version {self.version} needs another release, this one reads 1")

    @property
    def num_in(self) -> int:
        return self.stages[0].num_in

    @property
    def num_kept(self) -> int:
        return self.stages[-1].num_kept


def key_of(*parts: object) -> str:
    """Return a key of JSON values."""
    text = json.dumps([CODE_VERSION, *parts], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def config_key(config: Config) -> list[object]:
    """Return the part of a key that a config determines: its values, the versions of its kinds, and the files they read."""
    digests = [digest for each in _configs_in(config) for digest in getattr(each, "input_digests", tuple)()]
    return [type(config).__name__, to_dict(config), versions_of(config), *digests]


def versions_of(config: Config) -> dict[str, int]:
    """Return the `VERSION` of every kind in a config."""
    return {type(each).__name__: int(getattr(each, "VERSION", 1)) for each in _configs_in(config)}


def modules_of(config: Config) -> tuple[str, ...]:
    """Return the modules that define the kinds in a config, as plugins that a worker process can load."""
    return tuple(sorted({type(each).__module__.removeprefix(FILE_PLUGIN) for each in _configs_in(config)}))


def _configs_in(config: Config) -> Iterator[Config]:
    """Yield a config and all configs in its values."""
    yield config
    for name in config.__dataclass_fields__:
        value = getattr(config, name)
        items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        for item in items:
            if isinstance(item, Config):
                yield from _configs_in(item)


def stored_file(root: Path, path: Path, num_rows: int) -> StoredFile:
    """Return the record of a file that was written below `root`."""
    relative = path.relative_to(root).as_posix()
    return StoredFile(path=relative, num_rows=num_rows, num_bytes=path.stat().st_size, sha256=file_digest(path))


def find_record(root: Path, stage: str, key: str) -> ShardRecord | None:
    """Return the finished result of a key; None if it is missing, incomplete or changed in size."""
    path = record_path(root, stage, key)
    try:
        record = from_dict(ShardRecord, json.loads(path.read_text(encoding="utf-8")))
        files = [file for file in (record.documents, record.drops, record.facts) if file is not None]
        sizes = [(root / file.path).stat().st_size == file.num_bytes for file in files]
    except (OSError, ValueError, ConfigError):
        return None  # computed again
    return record if all(sizes) else None


def record_path(root: Path, stage: str, key: str) -> Path:
    """Return the path of the record of a result."""
    return root / STAGES / stage / f"{key}.json"


def summarize(name: str, config_digest: str, shards: Sequence[ShardRecord], reduce_seconds: float) -> StageSummary:
    """Return the counts of a stage."""
    return StageSummary(
        name=name,
        config_digest=config_digest,
        num_in=sum(shard.num_in for shard in shards),
        num_kept=sum(shard.num_kept for shard in shards),
        dropped=added(shard.dropped for shard in shards),
        languages=added(shard.languages for shard in shards),
        characters=sum(shard.characters for shard in shards),
        shards=tuple(shards),
        reduce_seconds=round(reduce_seconds, 3),
    )


def added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of counts by name, in the order of the names."""
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def read_manifest(corpus: Path) -> CorpusManifest:
    """Return the manifest of a corpus.

    Raises:
        CorpusError: the folder is not a finished corpus.
    """
    path = corpus / MANIFEST
    try:
        return from_dict(CorpusManifest, json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorpusError(
            f"{path} does not exist: {corpus} is not a finished corpus; make one with `openafm data run`"
        ) from error
    except (ValueError, ConfigError) as error:
        raise CorpusError(f"{path} is not the manifest of a corpus: {error}") from error


def write_counters(path: Path, stages: Sequence[StageSummary]) -> None:
    """Write the counts as OpenMetrics-style samples: a name, labels and a value each."""
    samples = []
    for stage in stages:
        labels = {"stage": stage.name}
        samples.append(_sample("openafm_documents_in_total", labels, stage.num_in))
        samples.append(_sample("openafm_documents_kept_total", labels, stage.num_kept))
        samples.append(_sample("openafm_characters_kept_total", labels, stage.characters))
        samples.append(_sample("openafm_cpu_seconds_total", labels, round(stage.seconds, 3)))
        for reason, count in stage.dropped.items():
            samples.append(_sample("openafm_documents_dropped_total", {**labels, "reason": reason}, count))
        for language, count in stage.languages.items():
            samples.append(_sample("openafm_documents_kept_by_language_total", {**labels, "language": language}, count))
    write_json(path, {"samples": samples})


def _sample(name: str, labels: Mapping[str, str], value: float) -> dict[str, object]:
    return {"name": name, "labels": dict(labels), "value": value}
