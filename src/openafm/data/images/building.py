"""Building image corpora shard by shard in worker processes, on this machine or on Ray.

What shards are computed from is a `ShardSource`. It divides a shard into units of work, such as one drawing or one page. A
unit that exceeds a limit or ends its worker is dropped with the reason; the shard is computed again without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.core.executors import Executor, ExecutorConfig, LocalConfig
from openafm.core.files import check_written
from openafm.core.folder_lock import folder_lock
from openafm.core.progress import progress
from openafm.core.worker_process import NO_LIMITS, Failure, LimitsConfig, unit
from openafm.data.images.manifest import MANIFEST, PATTERNS, Manifest, ShardSummary
from openafm.data.images.shard_writer import ShardItem, finish_corpus, finished_shard, write_image_shard
from openafm.data.images.shards import check_libraries
from openafm.data.web.documents import Dropped

REASONS = ("cpu_time", "wall_time", "killed", "crashed")
"""Reasons for which a unit that ended its worker is dropped."""

Unit = Callable[[], Iterable[ShardItem]]


class ShardFailedError(OpenAFMError):
    """A worker ended while it computed a shard, outside of its units."""


class ShardSource(ABC):
    """What the shards of an image corpus are computed from. It is pickled: workers get copies."""

    @property
    @abstractmethod
    def num_shards(self) -> int:
        """The number of shards; it must not depend on the number of workers."""

    @abstractmethod
    def key(self, shard: int) -> str:
        """Return what the bytes of a shard depend on, as a digest. Shards with equal keys are not computed again."""

    @abstractmethod
    def units(self, shard: int) -> Iterator[Unit]:
        """Yield the units of a shard in order: functions that return their documents and drops. Each is called once."""


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """One shard to compute. `lost` are the units that ended a worker before."""

    folder: Path
    source: ShardSource
    shard: int
    lost: Mapping[int, Failure] = field(default_factory=dict)


def build_image_corpus(
    folder: Path,
    config: Mapping[str, Any],
    source: ShardSource,
    executor: ExecutorConfig | None = None,
    limits: LimitsConfig = NO_LIMITS,
) -> Manifest:
    """Compute the shards of a corpus and its manifest. Shards that an interrupted call completed are kept.

    `config` is stored in the manifest. `limits` apply to each unit.

    Raises:
        ForeignFilesError: `folder` has other files than an image corpus.
        FolderInUseError: another process is writing it.
        ShardFailedError: a worker ended outside of a unit.
        OutOfSpaceError: the disk is full.
        MissingLibraryError: a library of the extra `images` is not installed.
    """
    check_libraries()
    if folder.exists():
        check_written(folder, (*PATTERNS, f".{MANIFEST}.*", ".[0-9]*"))
    with folder_lock(folder):
        for leftover in folder.glob(".[0-9]*"):
            leftover.unlink()  # of a process that was killed
        shards = range(source.num_shards)
        done = {shard: found for shard in shards if (found := finished_shard(folder, shard, source.key(shard)))}
        tasks = [ShardTask(folder=folder, source=source, shard=shard) for shard in shards if shard not in done]
        if tasks:
            (folder / MANIFEST).unlink(missing_ok=True)  # a corpus without a manifest is not complete
        with (executor or LocalConfig()).build() as workers, progress(f"write {folder}", len(shards)) as bar:
            for summary in _computed(workers, tasks, limits):
                done[summary.index] = summary
                bar.update(len(done), f"{sum(each.num_documents for each in done.values()):,} documents")
        return finish_corpus(folder, config, done.values())


def write_shard(task: ShardTask) -> ShardSummary:
    """Compute one shard; what workers do."""
    return write_image_shard(task.folder, task.shard, _items(task), key=task.source.key(task.shard))


def _items(task: ShardTask) -> Iterator[ShardItem]:
    for position, compute in enumerate(task.source.units(task.shard)):
        failure = task.lost.get(position)
        if failure is not None:
            yield Dropped(reason=failure.reason, detail=f"unit {position} of shard {task.shard}: {failure.detail}")
            continue
        with unit(position):
            found = list(compute())
        yield from found


def _computed(executor: Executor, tasks: list[ShardTask], limits: LimitsConfig) -> Iterator[ShardSummary]:
    while tasks:
        again = []
        for outcome in executor.map(write_shard, tasks, limits):
            if outcome.result is not None:
                yield outcome.result
            elif outcome.failure is not None:
                again.append(_without(outcome.item, outcome.failure))
        tasks = again


def _without(task: ShardTask, failure: Failure) -> ShardTask:
    """Return the task without the unit that ended its worker."""
    if failure.position < 0 or failure.position in task.lost:
        raise ShardFailedError(
            f"a worker ended ({failure.detail}) while it read shard {task.shard} of {task.folder}; free memory and run again"
        )
    return replace(task, lost={**task.lost, failure.position: failure})
