"""Where the stages of image data keep their results, and the tasks that compute them.

    pairs/
      manifest.json, 00000.tar, ...   the image corpus (`data/images/shards.py`)
      stages/pages, stages/texts      corpora of the text pipeline: documents of pages, documents to interleave
      stages/images/<key>.*           the images of one shard of a WARC file: encoded bytes, and one row for each response
      stages/<stage>/<key>.*          references, resolved references, candidates, selections

A key is a digest of the config, the inputs and the code's version; the record `<key>.json` is written last, so that a result
with a record is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openafm.core.config import Config, ConfigError, from_dict, to_dict
from openafm.core.files import write_json
from openafm.core.regular_files import read_document
from openafm.data.pipeline.inputs import Shard
from openafm.data.pipeline.store import STAGES

CODE_VERSION = 1
"""Increase it when the results of this room's code change."""


@dataclass(frozen=True, kw_only=True)
class Record(Config):
    """The result of a task: counts by name, and the size of each of its files by suffix."""

    counts: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """A unit of a task that ended its worker: its position, and why."""

    position: int
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """One result to compute: its stage and key, the JSON form of the `PairsConfig`, and the modules that it needs.

    `quarantined` are units that ended a worker before; they are dropped with that reason.
    """

    root: Path
    stage: str
    key: str
    config: str
    plugins: tuple[str, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()

    def path(self, suffix: str) -> Path:
        """Return the path of a file of the result."""
        return self.root / STAGES / self.stage / f"{self.key}.{suffix}"

    def finish(self, record: Record, *suffixes: str) -> Record:
        """Write the record of the result, which makes it complete, and return it with the sizes of these files."""
        files = {suffix: self.path(suffix).stat().st_size for suffix in suffixes}
        complete = Record(counts=record.counts, dropped=dict(sorted(record.dropped.items())), files=files)
        write_json(self.path("json"), to_dict(complete))
        return complete

    def found(self) -> Record | None:
        """Return the record if the result is complete."""
        try:
            record = from_dict(Record, json.loads(read_document(self.path("json"))))
            whole = all(self.path(suffix).stat().st_size == size for suffix, size in record.files.items())
        except (OSError, ValueError, RecursionError, ConfigError):
            return None  # computed again
        return record if whole else None


@dataclass(frozen=True, kw_only=True)
class ShardTask(Task):
    """A task on one shard of pages or documents.

    `index` is the number of the shard, `output` that of the shard of the image corpus; `inputs` are files of earlier stages
    by name.
    """

    shard: Shard
    index: int = 0
    output: int = 0
    inputs: Mapping[str, Path] = field(default_factory=dict)
    image_shards: tuple[Path, ...] = ()
    """The rows of images, one file for each shard."""


@dataclass(frozen=True, kw_only=True)
class ReduceTask(Task):
    """A task on the results of all shards. `inputs` are lists of files by name."""

    inputs: Mapping[str, tuple[Path, ...]]


def added(total: dict[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of counts by name."""
    return {name: total.get(name, 0) + more.get(name, 0) for name in sorted({*total, *more})}


def json_of(value: Mapping[str, Any]) -> str:
    """Return JSON with sorted keys, readable for people."""
    return json.dumps(dict(sorted(value.items())), ensure_ascii=False)
